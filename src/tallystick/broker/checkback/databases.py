"""Asking the database itself: the broker reads the barrier, so a check works with the whole producer fleet down."""

from __future__ import annotations

import logging

from tallystick.barrier import adapt_sync, decide_many, run_sync
from tallystick.barrier.addresses import DatabaseAddress
from tallystick.broker.threads import on_a_thread
from tallystick.core.errors import NotAllowed
from tallystick.core.ops import Answer

log = logging.getLogger("tallystick.broker.databases")


class BarrierDatabases:
    """The databases an operator named in the configuration. Producers name them; they never see a DSN."""

    def __init__(self, urls: dict[str, str], table: str) -> None:
        self._addresses = {
            name: DatabaseAddress.parse(url, f"databases.{name}", "databases") for name, url in urls.items()
        }
        self._table = table

    def check(self, name: str, field: str) -> None:
        if name not in self._addresses:
            known = ", ".join(sorted(self._addresses)) or "none"
            raise NotAllowed(
                f"{field}: no database {name!r} in this broker's configuration (it has: {known})", field=field
            )

    async def ask(self, name: str, gids: list[str], seconds: float, source: str) -> dict[str, Answer]:
        """What the barrier says; `WrongDatabase` if it is not the one that `source` names."""
        self.check(name, "check.target")
        return await on_a_thread(lambda: self._ask(name, gids, seconds, source), "tallystick-database")

    def _ask(self, name: str, gids: list[str], seconds: float, source: str) -> dict[str, Answer]:
        connection = self._addresses[name].connect(seconds)
        decide = decide_many(gids, wait=seconds, table=self._table, source=source)
        try:
            decided = run_sync(adapt_sync(connection), decide)
        finally:
            connection.close()
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}
