"""Deciding from one database: the outcomes of many transactions are found there, and told to the broker.

Everything here may happen twice, or half: an outcome is told only after it is durable in the producer's database, and
telling it again changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tallystick.barrier import BarrierError, adapt_sync, known_outcomes, run_sync
from tallystick.barrier.operations.barrier import decide_close
from tallystick.core.errors import TallystickError
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.link import Link
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.jdbc import Database

_BROKER_TIMEOUT = 60.0
# A database may be restarted while a job of some minutes runs.
_TRIES = 4
_PAUSE_SECONDS = 1.0
_OUTCOMES = ("committed", "rolled_back")


@dataclass
class BulkDecider:
    """For one database. It travels to the executors; only there it connects."""

    url: str
    database: Database
    table: str
    wait: float
    batch: int
    retry: float
    dry_run: bool
    credentials: Credentials = NO_CREDENTIALS
    _connection: Any = field(default=None, init=False, repr=False)

    def run(self, gids: Iterable[str]) -> Counter[str]:
        """How many came to which outcome; in order of gid they cost both sides least."""
        counts: Counter[str] = Counter()
        told: Future[Any] | None = None
        try:
            with (
                BrokersLink(
                    self.url, timeout=_BROKER_TIMEOUT, patience=self.retry, credentials=self.credentials
                ) as broker,
                ThreadPoolExecutor(1) as telling,
            ):
                # The broker is told of one batch while the database is asked for the next.
                for some in _batches(gids, self.batch):
                    decided = self._ask_patiently(some)
                    counts.update(decided.values())
                    if told is not None:
                        told.result()
                    told = telling.submit(self._tell, broker, decided)
                if told is not None:
                    told.result()
        finally:
            self._disconnect()
        return counts

    def _tell(self, broker: Link, decided: dict[str, str]) -> None:
        # Those that are unknown are left out: to say so would count as a check, and might park them.
        outcomes = {gid: said for gid, said in decided.items() if said in _OUTCOMES}
        if outcomes and not self.dry_run:
            broker.post("checks", "answers", answers=outcomes)

    def _ask_patiently(self, gids: list[str]) -> dict[str, str]:
        tries = 0
        while True:
            try:
                return self._ask(gids)
            except BarrierError:
                raise
            except Exception as error:
                self._disconnect()
                tries += 1
                if tries == _TRIES:
                    said = " ".join(str(error).split()) or type(error).__name__
                    raise TallystickError(f"{self.database.named}: {said}") from error
            time.sleep(_PAUSE_SECONDS * tries)

    def _ask(self, gids: list[str]) -> dict[str, str]:
        if self._connection is None:
            self._connection = self.database.connect(self.wait)
        adapter = adapt_sync(self._connection)
        if self.dry_run:
            known = run_sync(adapter, known_outcomes(gids, table=self.table))
            return {gid: known.get(gid, "open") for gid in gids}
        decided = run_sync(adapter, decide_close(gids, wait=self.wait, table=self.table))
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with closing(connection):
                pass


def _batches(gids: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(gids)
    while some := list(islice(left, size)):
        yield some
