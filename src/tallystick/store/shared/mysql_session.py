"""Connections to MySQL and MariaDB, on which several statements go out in one packet."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tallystick.store.shared.server import SESSIONS_NAME, ServerAway
from tallystick.store.shared.time_limits import ANSWER_SECONDS, CONNECT_SECONDS

MysqlError = pymysql.Error
Rows = tuple[tuple[Any, ...], ...]

# A server that is gone without a word is noticed by what it does not acknowledge, where the system knows these.
_PATIENCE = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}

# A writer that cannot get the fence's row for so long is told, instead of waiting for ever. The last two, each known
# to one of the servers only, keep long lists of keys what they are: one search in the index for each.
_SESSION = (
    b"set session transaction isolation level read committed",
    b"set session sql_mode = 'STRICT_ALL_TABLES'",
    b"set session innodb_lock_wait_timeout = 10, session lock_wait_timeout = 10"
    b" /*M!100308 , session in_predicate_conversion_threshold = 0 */"
    b" /*!80000 , session range_optimizer_max_mem_size = 0 */",
    b"select concat(@@hostname, ':', @@port, '/', connection_id())",
    b"show variables where variable_name in ('max_allowed_packet', 'read_only', 'wsrep_on')",
)
# On a Galera cluster a look waits until its node has everything that any node has acknowledged before. A new owner may
# be at another node than the owner before it was, and so may be the next connection of the same owner.
_GALERA = b"set session wsrep_sync_wait = @@session.wsrep_sync_wait | 1; show status like 'wsrep_ready'"
_LEAST_PACKET = 32 * 1024 * 1024
_HEAD_BYTES = 1_024  # what a packet holds besides statements, and more


class MysqlSession:
    """A connection, and how much it takes in one packet."""

    def __init__(self, login: dict[str, Any]) -> None:
        self._connection = pymysql.connect(
            **login,
            charset="utf8mb4",
            autocommit=True,  # a look leaves no transaction open, whose locks would keep an operator from the tables
            client_flag=CLIENT.MULTI_STATEMENTS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=CONNECT_SECONDS,  # until the session is set up
            write_timeout=ANSWER_SECONDS,
            program_name=SESSIONS_NAME,
            defer_connect=True,
        )
        self.session, self.awaited = "", 0
        self._statements, self._severed = 0, ""
        try:
            self._connection.connect(None if "unix_socket" in login else _socket(login["host"], login["port"]))
            self._most = self._begin()
        except BaseException:
            self.close()
            raise
        self._set_patience(ANSWER_SECONDS)

    def _begin(self) -> int:
        """Makes sure of a server that can do its part: how much it takes in one packet."""
        *_, named, shown = self.send(b";".join(_SESSION))
        self.session = str(named[0][0])
        settings: dict[str, str] = dict(shown)
        if settings["read_only"] != "OFF":
            raise ServerAway("this server takes no writes: its read_only is ON")
        if settings.get("wsrep_on") == "ON" and self.send(_GALERA)[-1][0][1] != "ON":
            raise ServerAway("this Galera node is not ready: it has not joined the cluster yet, or is cut off from it")
        most = int(settings["max_allowed_packet"])
        if most < _LEAST_PACKET:
            raise ServerAway(
                f"the server's max_allowed_packet is {most}, and a request of 16 MiB needs {_LEAST_PACKET}:"
                " set it to 64M"
            )
        return most

    def packets(self, statements: Iterable[bytes]) -> list[bytes]:
        """Mostly one."""
        made = [b";".join(some) for some in filled(statements, self._most - _HEAD_BYTES)]
        largest = max(map(len, made))
        if largest >= self._most:
            raise ServerAway(f"a value needs {largest} bytes in one packet: set the server's max_allowed_packet higher")
        return made

    def send(self, packet: bytes) -> list[Rows]:
        """The rows of each statement in it."""
        self._statements = self.awaited = self._statements + 1
        try:
            return self._send(packet)
        except (MysqlError, OSError) as error:
            if self._severed:
                raise ServerAway(self._severed) from error
            raise
        finally:
            self.awaited = 0

    def _send(self, packet: bytes) -> list[Rows]:
        with self._connection.cursor() as cursor:
            text: Any = packet  # which is taken as it is; the stubs know of str only
            cursor.execute(text)
            found = [cursor.fetchall()]
            while cursor.nextset():
                found.append(cursor.fetchall())
            return found

    def working_sessions(self) -> dict[str, bool]:
        """The sessions of this user at the server, and whether it works on a statement of theirs."""
        self._set_patience(CONNECT_SECONDS)
        # Not `show processlist`: it has the texts of all statements, which need not be UTF-8.
        (found,) = self.send(b"select id, command from information_schema.processlist")
        self._set_patience(ANSWER_SECONDS)
        server = self.session.rpartition("/")[0]
        return {f"{server}/{number}": command != "Sleep" for number, command in found}

    def _set_patience(self, seconds: float) -> None:
        connection: Any = self._connection  # PyMySQL can be given a limit when it connects only
        connection._read_timeout = seconds

    @property
    def lost(self) -> bool:
        return not self._connection.open

    def sever(self, reason: str) -> None:
        """The thread that waits reads the end of the stream. The socket stays its own to close."""
        self._severed = reason
        connection: Any = self._connection
        with contextlib.suppress(OSError, AttributeError):  # it was closed meanwhile
            socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)  # not TLS's, which uses the reader's state

    def close(self) -> None:
        with contextlib.suppress(MysqlError):  # it was never connected, or is closed
            self._connection.close()


def _socket(host: str, port: int) -> socket.socket:
    made = socket.create_connection((host, port), CONNECT_SECONDS)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PATIENCE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    try:
        made.recv(1, socket.MSG_PEEK)  # the server speaks first; one that is paused takes connections and says nothing
    except OSError:
        made.close()
        raise
    return made


def filled(pieces: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Pieces in their order, as many together as `most` bytes allow, and one at least. None if there are none."""
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        if some and size + len(piece) + 1 > most:
            yield some
            some, size = [], 0
        some.append(piece)
        size += len(piece) + 1
    if some:
        yield some
