"""A store on MySQL or MariaDB: four tables of bytes in order, and a row that fences them.

Statements that belong together go out in one packet, and so in one round trip. The server stops at the first that
fails. Bytes are part of the statements' text: see `quoted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tallystick.store.kv.engine import AREAS, Area, Changes, Found, Wanted
from tallystick.store.shared.mysql_link import MysqlLink, quoted
from tallystick.store.shared.mysql_session import filled
from tallystick.store.shared.server import Fence, ServerAway

_ROWS_BYTES = 4 * 1024 * 1024  # of one insert: a unit that is too large for one packet is divided between statements
_KEYS_BYTES = 512 * 1024  # of one list of keys

# An error if the row was not the one: what is behind it is not carried out. `do` would keep the error to itself.
_OR_FAIL = b"set @tallystick_fence = if(row_count() = 1, 1, (select 1 union select 2))"
_REFUSED = 1242  # more than one row in a place for one

# The server drops a connection that is silent between two packets of a unit, and with it the lock of the fence's row.
_IMPATIENT, _PATIENT = b"set session wait_timeout = 20;", b";set session wait_timeout = default"

_SETTINGS = """
    show global variables where variable_name in
    ('innodb_flush_log_at_trx_commit', 'innodb_flush_method', 'innodb_doublewrite', 'log_bin', 'sync_binlog')
"""


class MysqlServer(MysqlLink):
    def __init__(self, url: str, store: int) -> None:
        super().__init__(url)
        self._store = b"%d" % store

    # --- tables and the fence ------------------------------------------------------------------------------------

    def create(self) -> None:
        self._make_tables("mysql")

    def fence(self) -> Fence | None:
        _, found, _ = self._ask(b"begin", self._select_fence() + b" for update", b"commit")
        return _fence(found[0]) if found else None

    def claim(self, owner: str) -> Fence:
        row = b"%s, 1, 0, %s" % (self._store, quoted(owner.encode()))
        raised = (
            b"insert into tallystick_store_fence (store, epoch, unit, owner) values (%s)"
            b" on duplicate key update epoch = epoch + 1, owner = values(owner)" % row
        )
        _, _, found, _ = self._ask(b"begin", raised, self._select_fence(), b"commit")
        return _fence(found[0])

    def _select_fence(self) -> bytes:
        return b"select epoch, unit, owner from tallystick_store_fence where store = " + self._store

    # --- looks -----------------------------------------------------------------------------------------------

    def look_up(self, wanted: Wanted) -> Found:
        found: Found = {area: dict.fromkeys(keys) for area, keys in wanted.items()}
        asked = [
            (area, b"select `key`, value " + self._where(area, listed))
            for area in wanted
            for listed in _lists(map(quoted, found[area]))
        ]
        if asked:
            answers = self._ask(*(statement for _, statement in asked))
            for (area, _), rows in zip(asked, answers, strict=True):
                found[area].update(rows)
        return found

    def _where(self, area: Area, condition: bytes) -> bytes:
        """These rows of an area. Left to itself, the server reads all rows of all stores as long as they are few, and
        so a delete would wait for rows that others have locked."""
        known = b"from tallystick_store_%s as known force index (primary)" % area.encode()
        return b"%s where store = %s and %s" % (known, self._store, condition)

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        statement = _PAGE % {
            b"area": area.encode(),
            b"store": self._store,
            b"start": quoted(start),
            b"end": quoted(end),
            b"limit": limit,
            b"max_bytes": max_bytes,
            b"order": b"desc" if backwards else b"asc",
        }
        (found,) = self._ask(statement)
        return [(key, value) for key, value in found]

    # --- writes ----------------------------------------------------------------------------------------------

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        fenced = b"update tallystick_store_fence set unit = unit + 1 where store = %s and epoch = %d and unit = %d"
        statements = [b"begin", fenced % (self._store, epoch, unit), _OR_FAIL, *self._changing(changes), b"commit"]
        try:
            with self._connected() as session:
                packets = session.packets(statements)
                if len(packets) > 1:
                    packets = [_IMPATIENT + packets[0], *packets[1:-1], packets[-1] + _PATIENT]
                for packet in packets:
                    self._trip(session, packet)
        except ServerAway as error:
            if error.__cause__ is not None and error.__cause__.args[:1] == (_REFUSED,):
                return False  # its connection is gone, and all that was begun there
            raise
        return True

    def _changing(self, changes: Changes) -> Iterator[bytes]:
        for area, start, end in changes.ranges:
            yield b"delete known " + self._where(area, b"`key` >= %s and `key` < %s" % (quoted(start), quoted(end)))
        for area in AREAS:
            changed = changes.keys[area]
            for listed in _lists(quoted(key) for key, value in changed.items() if value is None):
                yield b"delete known " + self._where(area, listed)
            head = b"insert into tallystick_store_%s (store, `key`, size, value) values " % area.encode()
            rows = (self._row(key, value) for key, value in changed.items() if value is not None)
            for some in filled(rows, _ROWS_BYTES):
                yield head + b",".join(some) + b" on duplicate key update size = values(size), value = values(value)"

    def _row(self, key: bytes, value: bytes) -> bytes:
        return b"(%s,%s,%d,%s)" % (self._store, quoted(key), len(value), quoted(value))

    def weaknesses(self) -> list[str]:
        (rows,) = self._ask(_SETTINGS.encode())
        settings = {name.lower(): str(value).lower() for name, value in rows}
        found = []
        if (flush := settings["innodb_flush_log_at_trx_commit"]) != "1":
            found.append(
                f"innodb_flush_log_at_trx_commit is {flush}: a crash loses what was committed last; set it to 1"
            )
        if settings["log_bin"] == "on" and settings["sync_binlog"] != "1":
            found.append(
                f"sync_binlog is {settings['sync_binlog']}: after a crash, what the binary log lacks is rolled back;"
                " set it to 1"
            )
        if (method := settings.get("innodb_flush_method")) in ("nosync", "littlesync"):
            found.append(f"innodb_flush_method is {method}: a crash of the machine can damage the whole database")
        if settings["innodb_doublewrite"] in ("off", "0"):
            found.append("innodb_doublewrite is off: a crash of the machine can damage pages that it cuts through")
        return found


def _fence(row: tuple[Any, ...]) -> Fence:
    epoch, unit, owner = row
    return Fence(epoch, unit, owner.decode())


# --- statements ----------------------------------------------------------------------------------------------------

# The sizes are summed up without the values, which would all be copied into a table that lies on the disk. One
# statement sees one state of the rows: with two, a row that is gone in between would look like the end.
_PAGE = b"""
    select known.`key`, known.value from (
        select `key`, sum(size) over (
            order by `key` %(order)s rows between unbounded preceding and 1 preceding
        ) as ahead from (
            select `key`, size from tallystick_store_%(area)s
            where store = %(store)s and `key` >= %(start)s and `key` < %(end)s
            order by `key` %(order)s limit %(limit)d
        ) as measured
    ) as sized
    straight_join tallystick_store_%(area)s as known on known.store = %(store)s and known.`key` = sized.`key`
    where coalesce(sized.ahead, 0) < %(max_bytes)d order by sized.`key` %(order)s"""


def _lists(keys: Iterable[bytes]) -> Iterator[bytes]:
    return (b"`key` in (%s)" % b",".join(some) for some in filled(keys, _KEYS_BYTES))
