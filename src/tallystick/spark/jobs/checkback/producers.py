"""Whose transactions are whose: which database holds the barrier row of a pending transaction.

To ask the wrong database is the one mistake that this job must never make. It has no row of the transaction, so the
transaction would be called rolled back, although its own database committed it. Therefore a transaction is decided
from a database only if it says itself that its row is there. Everything else is foreign and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tallystick.barrier import TablesMissing, adapt_sync, run_sync
from tallystick.barrier.names import checked_table
from tallystick.barrier.operations.identity import whereabouts_alone
from tallystick.core.errors import ConfigError, TallystickError
from tallystick.spark.jdbc import Database

_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)
# An address that means another database on every machine.
_LOCAL = re.compile(r"sqlite:|\w+://(|localhost|127\.[0-9.]+|::1|/.*):[0-9]*[/#]")


@dataclass(frozen=True)
class ProducerDatabase:
    """A database of producers. `name` is what the broker's configuration calls it, if it is there; `also` are further
    addresses by which producers know it (another host name, a proxy), or whole sources."""

    database: Database
    name: str = ""
    also: tuple[str, ...] = field(default=())

    @classmethod
    def parse(cls, text: str, also: Sequence[str] = ()) -> ProducerDatabase:
        """From `URL` or `NAME=URL`."""
        found = _NAMED.fullmatch(text)
        name, url = found.groups() if found and "://" not in found[1] else ("", text)
        return cls(Database.parse(url, f"--database {name}".strip()), name, tuple(also))


@dataclass(frozen=True)
class KnownDatabase:
    """A database that has been asked for its own name."""

    name: str
    database: Database
    sources: frozenset[str]

    @property
    def shown(self) -> str:
        return self.name or min(self.sources)


def look_at(given: ProducerDatabase, table: str) -> KnownDatabase:
    """Connect once: a database that cannot be reached, or has no barrier table, is told before anything is decided."""
    try:
        connection = given.database.connect()
    except Exception as error:
        raise TallystickError(f"{given.database.named}: cannot connect: {_one_line(error)}") from None
    try:
        _check_table(connection, given, table)
        connection.rollback()
        adapter = adapt_sync(connection)
        here, address = run_sync(adapter, whereabouts_alone(table=table)), adapter.address
    finally:
        connection.close()
    also = (name if "#" in name else here.source(name) for name in given.also)
    return KnownDatabase(given.name, given.database, frozenset({here.source(address), *also}))


def _check_table(connection: Any, given: ProducerDatabase, table: str) -> None:
    try:
        cursor = connection.cursor()
        cursor.execute(f"select gid, reason from {checked_table(table)} where 1 = 0")  # noqa: S608  a checked name
        cursor.close()
    except Exception as error:
        raise TablesMissing(
            f"{given.database.named}: the barrier table {table} cannot be read ({_one_line(error)}); "
            "name it with --barrier-table"
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check_apart(databases: Sequence[KnownDatabase], groups: Sequence[str]) -> None:
    """Refuse databases that cannot be told apart, and addresses that only a group makes unambiguous."""
    seen: dict[str, KnownDatabase] = {}
    for database in databases:
        for source in database.sources:
            if source in seen:
                raise ConfigError(f"--database: two of them are the same one, {source}", field="database")
            seen[source] = database
            if not groups and is_local(source):
                raise ConfigError(
                    f"--group: {source.partition('#')[0]} means another database on every machine; add --group NAME "
                    "for the producer groups whose database this is (`tallystick tx list` shows the groups)",
                    field="group",
                )
    names = [database.name for database in databases if database.name]
    if len(set(names)) < len(names):
        raise ConfigError("--database: two of them have the same name", field="database")


def is_local(source: str) -> bool:
    return _LOCAL.match(unquote(source)) is not None


def owner_of(databases: Sequence[KnownDatabase], sourceless: bool, source: str, via: str, target: str) -> int | None:
    """The number of the database that holds a transaction's barrier row; none for a foreign one.

    What counts is `source`. Only a transaction without one is known by the name under which the broker would ask.
    One that names two of the given databases at once is nobody's.
    """
    by_source = next((number for number, known in enumerate(databases) if source in known.sources), None)
    by_name = None
    if via == "database":
        by_name = next((number for number, known in enumerate(databases) if known.name and known.name == target), None)
    if not source:
        return 0 if by_name is None and sourceless else by_name
    return None if by_source is not None and by_name not in (None, by_source) else by_source
