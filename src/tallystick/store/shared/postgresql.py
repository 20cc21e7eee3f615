"""A store on PostgreSQL: four tables of bytes in order, and a row that fences them. Every method is one statement.

No row is rewritten with every unit: its versions would pile up under a snapshot that is held elsewhere, and each unit
would walk over all of them. A unit locks the fence's row, adds its own row to tallystick_store_unit under its number,
and puts what it rewrites there (`redo.py`). A trigger on the fence moves that to its table whenever the row is updated
without a new number: at a claim, a release, a question for the fence, and after some thousand units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct as Packer
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.types.numeric import Int4, Int8

from tallystick.core.errors import ConfigError
from tallystick.store.kv.engine import AREAS, Area, Changes, Found, Wanted
from tallystick.store.shared.connections import Connections
from tallystick.store.shared.definitions import table_names, table_statements, triggers
from tallystick.store.shared.health import health_of
from tallystick.store.shared.postgresql_session import (
    PatientConnection,
    away_because,
    beginning_at,
    connected,
    working_sessions,
)
from tallystick.store.shared.redo import AREA as REDO_AREA
from tallystick.store.shared.redo import Redo
from tallystick.store.shared.server import SESSIONS_NAME, Fence, ServerAway
from tallystick.store.shared.time_limits import CONNECT_SECONDS

Connection = PatientConnection

# A dead server is noticed within seconds, and after a failover the one that takes writes is looked for. What the
# operator's URL says goes before.
_CONNECTING = {
    "connect_timeout": f"{CONNECT_SECONDS:.0f}",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "target_session_attrs": "read-write",
    "fallback_application_name": SESSIONS_NAME,
}
# Rows are found through the index, whatever the planner thinks of a table that has just grown. A writer that cannot get
# the fence's row for so long is told, instead of waiting for ever. A statement that is cancelled while it waits for a
# synchronous standby is told as committed, so no time limit of the operator's may do that.
_SESSION = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "lock_timeout": "10s",
    "statement_timeout": "0",
    "default_transaction_isolation": "read committed",
}
_CREATING = 0x7461_6C6C_7973  # the number of the lock that those who make the tables take
_LACKING = """
    select (select count(*) from unnest(%s::text[]) as wanted (name) where to_regclass(wanted.name) is null)
    + (select count(*) from unnest(%s::text[], %s::text[]) as wanted (name, place) where not exists(
        select from pg_trigger where tgname = wanted.name and tgrelid = to_regclass(wanted.place)))
"""

# The update changes nothing but makes the trigger move what the units' rows hold, and so count them.
_FENCE = "update tallystick_store_fence set owner = owner where store = %b returning epoch, unit, owner"
# Without room to move anything: wait for every write that has reached the server, then read what was not moved.
_WAIT_FOR_WRITES = "select epoch from tallystick_store_fence where store = %b for no key update"
_UNMOVED = """
    select fence.epoch, fence.unit, fence.owner, units.unit, units.keys, units.vals
    from tallystick_store_fence as fence left join tallystick_store_unit as units
        on units.store = fence.store and units.unit >= fence.unit
    where fence.store = %b order by units.unit
"""
_MOVE = "update tallystick_store_fence set owner = owner where store = %b and epoch = %b returning unit"
_CLAIM = """
    insert into tallystick_store_fence as known (store, epoch, unit, owner) values (%b, 1, 0, %b)
    on conflict (store) do update set epoch = known.epoch + 1, owner = excluded.owner
    returning epoch, unit, owner
"""
_SETTINGS = """
    select name, setting from pg_settings
    where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
"""


class PostgresqlLink:
    """Connections to a server, and statements over them."""

    def __init__(self, url: str) -> None:
        try:
            self._conninfo = make_conninfo("", **{**_CONNECTING, **conninfo_to_dict(url)})
        except psycopg.Error:  # without its cause, which may show a part of the password
            raise ConfigError(
                "store: not a valid address of a PostgreSQL server, or one with a parameter that libpq does not know",
                field="store",
            ) from None
        self._health = health_of(self._conninfo)
        self._connections: Connections[Connection] = Connections(self._connect, working_sessions, self._health)
        self.trips = 0

    def _connect(self) -> Connection:
        conninfo, first = beginning_at(self._conninfo, self._health.detour)
        connection = connected(conninfo, self._set_up())
        self._health.reached(f"{connection.info.host}:{connection.info.port}", first)
        connection.adapters.register_dumper(_Keys, _KeysDumper)
        return connection

    def _set_up(self) -> dict[str, str]:
        """The settings of a session."""
        return _SESSION

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self._connections.one() as connection:
                yield connection
        except psycopg.Error as error:
            raise away_because(error) from error

    def _rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            self.trips += 1
            return connection.execute(statement, parameters, binary=True).fetchall()

    @contextmanager
    def _making(self) -> Iterator[Connection]:
        """A transaction in which one at a time makes what is missing."""
        with self._connected() as connection, connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", (_CREATING,))
            yield connection

    def _make_tables(self, kind: str) -> None:
        """If one of them is missing: who only uses them needs no right to make any. Their statements wait for whoever
        reads the tables, a dump for example, and all who work with them would wait behind that."""
        made = triggers(kind)
        wanted = list(table_names(kind)), [name for name, _ in made], [place for _, place in made]
        if not self._rows(_LACKING, *wanted)[0][0]:
            return
        with self._making() as connection:
            if connection.execute(_LACKING, wanted).fetchall()[0][0]:  # still, now that it is our turn
                for statement in table_statements(kind):
                    connection.execute(statement, prepare=False)

    def cut(self) -> None:
        self._connections.cut()

    def close(self) -> None:
        self._connections.cut()


class PostgresqlServer(PostgresqlLink):
    def __init__(self, url: str, store: int) -> None:
        super().__init__(url)
        self._store = Int4(store)
        self._redo = Redo()

    # --- tables and the fence ------------------------------------------------------------------------------------

    def create(self) -> None:
        self._make_tables("postgresql")

    def fence(self) -> Fence | None:
        try:
            found = self._rows(_FENCE, self._store)
        except ServerAway as error:
            if not error.full:
                raise
            return self._unmoved_fence()
        self._redo.moved()
        return Fence(*found[0]) if found else None

    def _unmoved_fence(self) -> Fence | None:
        self._rows(_WAIT_FOR_WRITES, self._store)
        rows = self._rows(_UNMOVED, self._store)
        if not rows:
            return None
        epoch, unit, owner, newest = *rows[0][:3], rows[-1][3]
        self._redo.hold(
            [dict(zip(keys, values, strict=True)) for *_, number, keys, values in rows if number is not None]
        )
        return Fence(epoch, unit if newest is None else newest + 1, owner)

    def claim(self, owner: str) -> Fence:
        claimed = self._rows(_CLAIM, self._store, owner)
        self._redo.moved()
        return Fence(*claimed[0])

    # --- looks -----------------------------------------------------------------------------------------------

    def look_up(self, wanted: Wanted) -> Found:
        found: Found = {area: dict.fromkeys(keys) for area, keys in wanted.items()}
        known = self._redo.known(wanted.get(REDO_AREA, ()))
        if known:
            found[REDO_AREA].update(known)
            wanted = {**wanted, REDO_AREA: [key for key in wanted[REDO_AREA] if key not in known]}
        asked = {area: keys for area, keys in wanted.items() if keys}
        if asked:
            parameters = [part for keys in asked.values() for part in (_Keys(keys), self._store)]
            for area, key, value in self._rows(_look_up(tuple(asked)), *parameters):
                found[AREAS[area]][key] = value
        return found

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        def read(start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
            found = self._rows(_page(area, backwards), self._store, start, end, Int8(limit), Int8(max_bytes))
            return [(key, value) for key, value in found]

        if area != REDO_AREA:
            return read(start, end)
        return self._redo.page(read, start, end, limit, max_bytes, backwards)

    # --- writes ----------------------------------------------------------------------------------------------

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        if self._redo.must_move_before(changes):
            self._move(epoch)
        kept, rest = self._redo.split(changes)
        parts, parameters = _parts(rest)
        number = Int8(unit)
        fenced = (self._store, Int8(epoch), number, number, self._store, Int8(unit - 1))
        noted = (number, _Keys(kept), _Keys(kept.values()))
        try:
            hit = self._rows(_unit(parts), *fenced, *noted, *parameters)
        except ServerAway as error:
            if not error.full:  # a refusal for lack of room leaves nothing behind, and a move may lack room as well
                self._redo.in_doubt()
            raise
        if hit:
            self._redo.written(kept)
        return bool(hit)

    def _move(self, epoch: int) -> None:
        """If the store has another owner by now, nothing happens, and the unit that follows is refused."""
        self._rows(_MOVE, self._store, Int8(epoch))
        self._redo.moved()

    def weaknesses(self) -> list[str]:
        settings = dict(self._rows(_SETTINGS))
        found = [
            f"{name} is off: a crash of the machine can damage the whole database"
            for name in ("fsync", "full_page_writes")
            if settings[name] == "off"
        ]
        if settings["synchronous_commit"] == "off":
            found.append("synchronous_commit is off: a crash loses what was committed in the last moments")
        if settings["synchronous_commit"] == "local" and settings["synchronous_standby_names"]:
            found.append("synchronous_commit is local: a standby that takes over may lack what was committed last")
        return found


# --- statements ----------------------------------------------------------------------------------------------------

Part = tuple[str, Area]  # what is done to an area: "ranges", "deletes" or "sets"


def _parts(changes: Changes) -> tuple[tuple[Part, ...], list[Any]]:
    """What a unit does to which areas, and the parameters of that."""
    parts: list[Part] = []
    parameters: list[Any] = []
    for area in AREAS:
        changed = changes.keys[area]
        sets = {key: value for key, value in changed.items() if value is not None}
        ranges = [(start, end) for where, start, end in changes.ranges if where == area]
        if ranges:
            parts.append(("ranges", area))
            parameters += [_Keys(start for start, _ in ranges), _Keys(end for _, end in ranges), _Keys(sets)]
        if len(sets) < len(changed):
            parts.append(("deletes", area))
            parameters.append(_Keys(key for key, value in changed.items() if value is None))
        if sets:
            parts.append(("sets", area))
            parameters += [_Keys(sets), _Keys(sets.values())]
    return tuple(parts), parameters


# All parts of a statement see the rows as they were before it. A key in a deleted range that is set by the same unit is
# therefore left to the part that sets it. Without the unit's row the store is null, and no row has that number.
# Keys are looked for one by one: `offset 0` keeps the planner from making a join of it, or from reading all of a store
# to filter out a thousand keys, as it did with a table of which it knew too little.
_PARTS = {
    "ranges": """(
        delete from tallystick_store_{area} where ctid = any(array(
            select found.place from unnest(%b, %b) as gone (first, behind), lateral (
                select known.ctid as place from tallystick_store_{area} as known
                where known.store = (select store from noted)
                    and known.key >= gone.first and known.key < gone.behind and not known.key = any(%b)
                offset 0) as found)))""",
    "deletes": """(
        delete from tallystick_store_{area} where ctid = any(array(
            select found.place from unnest(%b) as gone (key), lateral (
                select known.ctid as place from tallystick_store_{area} as known
                where known.store = (select store from noted) and known.key = gone.key
                offset 0) as found)))""",
    "sets": """(
        insert into tallystick_store_{area} (store, key, value)
        select noted.store, new.key, new.value from noted, unnest(%b, %b) as new (key, value)
        on conflict (store, key) do update set value = excluded.value)""",
}


@cache
def _unit(parts: tuple[Part, ...]) -> str:
    """One statement: the fence, the unit's row, and all changes on condition of both. Being one, it is on its own a
    transaction that no lost connection can leave open, with the fence's row locked.

    The lock puts the writers and claims of a store into one line. A statement that waited for it sees the fence as it
    is then, and all other rows as they were before the wait. That is enough: the unit before this one was there when
    this one was sent, and a row that has taken this number meanwhile is a conflict. The fence's own number is the
    first one whose row was not moved; a unit with a smaller one is refused, so rows that are gone are not missed."""
    fenced = """with fenced as (
        select store from tallystick_store_fence where store = %b and epoch = %b and (
            unit = %b or unit < %b and exists(select from tallystick_store_unit where store = %b and unit = %b))
        for no key update)"""
    noted = """noted as (
        insert into tallystick_store_unit (store, unit, keys, vals) select store, %b, %b, %b from fenced
        on conflict (store, unit) do nothing returning store)"""
    changed = [f"{what}_{area} as {_PARTS[what].format(area=area)}" for what, area in parts]
    return ",\n".join([fenced, noted, *changed]) + "\nselect store from noted"


@cache
def _look_up(areas: tuple[Area, ...]) -> str:
    return "\nunion all ".join(
        f"""select {AREAS.index(area)}::int2, found.key, found.value from unnest(%b) as asked (key), lateral (
            select key, value from tallystick_store_{area} as known where store = %b and known.key = asked.key
            offset 0) as found"""
        for area in areas
    )


@cache
def _page(area: Area, backwards: bool) -> str:
    """Rows up to a number and a size. The size of a large value is known without reading it."""
    order = "desc" if backwards else "asc"
    return f"""
        select key, value from (
            select key, value, sum(octet_length(value)) over (order by key {order}) - octet_length(value) as before
            from (
                select key, value from tallystick_store_{area} where store = %b and key >= %b and key < %b
                order by key {order} limit %b
            ) as found
        ) as sized
        where before < %b order by key {order}"""


class _Keys(list[bytes]):
    """An array of bytea."""


class _KeysDumper(Dumper):
    """In the form in which PostgreSQL sends and takes it. A unit may have thousands of keys; psycopg's own way looks at
    each."""

    format = Format.BINARY
    oid = 1001  # bytea[]
    _HEAD, _LENGTH = Packer("!iiIii"), Packer("!i")
    _EMPTY = Packer("!iiI").pack(0, 0, 17)

    def dump(self, obj: Iterable[bytes]) -> bytes:
        items = list(obj)
        if not items:
            return self._EMPTY
        pack = self._LENGTH.pack
        return self._HEAD.pack(1, 0, 17, len(items), 1) + b"".join(
            [part for item in items for part in (pack(len(item)), item)]
        )
