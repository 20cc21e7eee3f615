"""Which barrier table is this? Its own name, kept in it as a row, and the schema in which a connection finds it.

Host, port and database do not tell: two schemas of one database have two barriers, and 127.0.0.1 is another machine
for everybody. An answer from the wrong barrier is always "rolled back", so it is made sure of before one is given.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import WrongDatabase
from tallystick.barrier.names import BARRIER_TABLE
from tallystick.barrier.operations.common import as_text, insert_once, own_transaction, writing
from tallystick.barrier.statement import Control, Steps, operation, own_operation

_WAIT = 3.0

_PLACE = "at-"
"""Begins the name that a table without an identity has from its server."""


class Whereabouts(Struct, frozen=True):
    """Where a connection finds the barrier table now. `path` is what makes it find it there (a search path)."""

    identity: str
    schema: str
    path: str
    kept: bool = True
    """Whether the identity was read from the table. False: it is a name that `named_here` has found or given."""

    @property
    def name(self) -> str:
        return _name(self.schema, self.identity)

    @property
    def placed(self) -> bool:
        """Whether the server names the table, which has no identity yet."""
        return self.identity.startswith(_PLACE)

    @property
    def temporary(self) -> bool:
        """Whether a temporary table hides the barrier: no other connection finds it."""
        return self.schema == "temp" or self.schema.startswith("pg_temp")

    def source(self, address: str) -> str:
        """The name of the database on the wire: how it is reached, and which one it is."""
        return f"{address}#{self.name}"


@operation
def whereabouts(sql: Dialect, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """Where the open transaction finds the barrier; the identity is empty if the table has none."""
    return (yield from find_barrier(sql, table))


@operation
def named_here(sql: Dialect, here: Whereabouts, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """The place under a name, where the open transaction finds a table without an identity.

    Needs no other connection and changes nothing: server, database and table together have a name already. An engine
    that cannot tell it (SQLite) gets the identity as part of the open transaction.
    """
    if sql.hides_unseen and (yield from _is_temporary(sql, table)):
        return replace(here, schema="temp", kept=False)
    place = yield from _find_place(sql, table)
    if not place:
        yield from insert_once(queries.insert_identity(sql, table, secrets.token_hex(12)))
        ((place,),) = (yield queries.select_identity(sql, table)).rows
    return replace(here, identity=as_text(place), kept=False)


def _is_temporary(sql: Dialect, table: str) -> Steps[bool]:
    _, definition = (yield queries.show_table(table)).rows[0]
    return as_text(definition).lower().startswith("create temporary")


def _find_place(sql: Dialect, table: str) -> Steps[str]:
    """The name that a table without an identity has from its server; empty where the engine cannot tell it.

    All connections to the table find the same one, and those to any other table find another one: it includes what is
    the server's alone. A server that is replaced has another one, and its answer then is an error, never an outcome.
    """
    place = ""
    for question in queries.place_questions(sql, table):
        rows = (yield question).rows
        if not rows:
            return ""
        place = as_text(rows[0][0])
    return _PLACE + hashlib.sha256(place.encode()).hexdigest()[:24] if place else ""


@own_operation
def whereabouts_alone(sql: Dialect, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """The same in a transaction of its own, which changes nothing."""
    return (yield from _whereabouts_alone(sql, table))


@own_operation
def ensure_identity(sql: Dialect, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """The same, after the table was given an identity if it had none (one that dtm's tools made, say)."""
    here = yield from _whereabouts_alone(sql, table)
    if here.identity:
        return here
    yield from give_identity(sql, table)
    return (yield from _whereabouts_alone(sql, table))


@operation
def give_identity_here(sql: Dialect, *, table: str = BARRIER_TABLE) -> Steps[None]:
    """Give the table an identity if it has none, as part of the transaction that is open, if any is."""
    yield from identity_row(sql, table)


def identity_row(sql: Dialect, table: str = BARRIER_TABLE) -> Steps[bool]:
    return insert_once(queries.insert_identity(sql, table, secrets.token_hex(12)))


def give_identity(sql: Dialect, table: str = BARRIER_TABLE) -> Steps[None]:
    """In a transaction of its own."""
    yield from writing(sql, identity_row(sql, table), _WAIT)


@own_operation
def require_here(sql: Dialect, source: str, *, table: str = BARRIER_TABLE) -> Steps[None]:
    """Raise `WrongDatabase` unless the connection leads to the barrier that `source` names."""
    yield from require_source(sql, table, source)


def require_source(sql: Dialect, table: str, source: str) -> Steps[None]:
    """In a transaction of its own: raise `WrongDatabase` unless this is the barrier that `source` names.

    Without a source whoever asks knows of only one. A name that no block made is that of no barrier.
    """
    if not source:
        return
    here = yield from _whereabouts_alone(sql, table)
    address, _, wanted = source.rpartition("#")
    schema, named, identity = wanted.rpartition("/")
    right = here.name == f"{schema}/{identity or here.identity}"
    if not right and identity.startswith(_PLACE) and here.name.rpartition("/")[0] == schema:
        # Prepared before the table had an identity.
        right = identity == (yield from _place_alone(sql, table))
    if not (address and named and right):
        raise WrongDatabase(
            f"the outcome is in the barrier of {source}, but this connection finds {table} in {here.name}: another "
            "schema, database or server. Nothing is decided from here"
        )


def _whereabouts_alone(sql: Dialect, table: str) -> Steps[Whereabouts]:
    return (yield from own_transaction(sql, sql.begin_reading(_WAIT), find_barrier(sql, table), end=Control.ROLLBACK))


def _place_alone(sql: Dialect, table: str) -> Steps[str]:
    return (yield from own_transaction(sql, sql.begin_reading(_WAIT), _find_place(sql, table), end=Control.ROLLBACK))


def find_barrier(sql: Dialect, table: str) -> Steps[Whereabouts]:
    """As part of a transaction that is open."""
    return as_whereabouts((yield queries.select_whereabouts(sql, table)).rows[0], table)


@lru_cache(maxsize=1024)
def _name(schema: str, identity: str) -> str:
    return f"{quote(schema, safe='')}/{identity}"


@lru_cache(maxsize=1024)
def as_whereabouts(row: tuple[str | bytes | None, ...], table: str) -> Whereabouts:
    identity, schema, path = (as_text(value or "") for value in row)
    # A table that is named with its schema is there, whatever the connection would find without it.
    return Whereabouts(identity, table.rpartition(".")[0] or schema, path)
