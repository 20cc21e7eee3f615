"""The way to MySQL and MariaDB: connections to the first server that takes writes, and statements over them."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tallystick.core.errors import ConfigError
from tallystick.core.mysql_urls import WrongOption, mysql_servers
from tallystick.store.shared.connections import Connections
from tallystick.store.shared.definitions import table_names, table_statements
from tallystick.store.shared.health import health_of
from tallystick.store.shared.mysql_session import MysqlError, MysqlSession, Rows
from tallystick.store.shared.server import LOCKED, ServerAway

_TABLES = b"""
    select count(*) from information_schema.tables where table_schema = database() and table_name in (%s)
"""


class MysqlLink:
    def __init__(self, url: str) -> None:
        try:
            self._logins = mysql_servers(url)
        except WrongOption as wrong:
            raise ConfigError(f"store: {wrong}", field="store") from None
        except ValueError:  # without its cause, which may show a part of the password
            raise ConfigError("store: not a valid address of a MySQL server", field="store") from None
        self._health = health_of(url)
        self._connections: Connections[MysqlSession] = Connections(self._connect, _working_sessions, self._health)
        self.trips = 0

    def _connect(self) -> MysqlSession:
        """To the first of the servers that takes writes."""
        refusals = []
        detour, places = self._health.detour, [_place(login) for login in self._logins]
        for place, login in sorted(zip(places, self._logins, strict=True), key=lambda one: one[0] != detour):
            try:
                session = MysqlSession(login)
                self._health.reached(place, places[0])
                return session
            except (MysqlError, OSError, ServerAway) as error:
                refusals.append(_told(error) if len(self._logins) == 1 else f"{login['host']}: {_told(error)}")
        raise ServerAway("; ".join(refusals))

    @contextmanager
    def _connected(self) -> Iterator[MysqlSession]:
        try:
            with self._connections.one() as session:
                yield session
        except (MysqlError, OSError) as error:
            raise ServerAway(_told(error), _is_full(error)) from error

    def _ask(self, *statements: bytes) -> list[Rows]:
        """The rows of each statement."""
        with self._connected() as session:
            return [rows for packet in session.packets(statements) for rows in self._trip(session, packet)]

    def _trip(self, session: MysqlSession, packet: bytes) -> list[Rows]:
        self.trips += 1
        return session.send(packet)

    def _make_tables(self, kind: str) -> None:
        """If one of them is missing: who only uses them needs no right to make any."""
        names = table_names(kind)
        if self._ask(_TABLES % b",".join(quoted(name.encode()) for name in names))[0][0][0] < len(names):
            self._ask(*(statement.encode() for statement in table_statements(kind)))

    def cut(self) -> None:
        self._connections.cut()

    def close(self) -> None:
        self._connections.cut()


def _working_sessions(session: MysqlSession, _: Sequence[str]) -> dict[str, bool]:
    try:
        return session.working_sessions()
    except (MysqlError, OSError) as error:
        raise ServerAway(_told(error)) from error


def _place(login: dict[str, Any]) -> str:
    return str(login.get("unix_socket")) if "unix_socket" in login else f"{login['host']}:{login['port']}"


_LOCK_WAIT = 1205
_FULL = (1021, 1114)  # the disk, or the table, is full
_NO_ROOM = re.compile(r"\b(?:error|errno|Errcode):? 28\b|No space left", re.IGNORECASE)
_QUOTED = re.compile(r" near '.*' at line \d+", re.DOTALL)


def _told(error: Exception) -> str:
    """What the server says, without the part of the statement that it quotes."""
    said = _QUOTED.sub("", " ".join(str(part) for part in error.args))
    return f"{LOCKED}; {said}" if error.args[:1] == (_LOCK_WAIT,) else said


def _is_full(error: Exception) -> bool:
    return error.args[:1] in [(code,) for code in _FULL] or bool(_NO_ROOM.search(str(error)))


def quoted(data: bytes) -> bytes:
    """Bytes as a literal that means the same whatever the session's sql_mode and character set are.

    That is certain as long as there is no backslash in quotes. Text, which seldom has one, grows by nothing; what has
    one grows by a third. PyMySQL's own way is to escape, and is right in one sql_mode only."""
    if b"\\" in data:
        return b"from_base64('%s')" % b2a_base64(data, newline=False)
    return b"_binary'%s'" % data.replace(b"'", b"''")
