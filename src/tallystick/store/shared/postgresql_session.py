"""Connections to PostgreSQL on which no wait is without a limit."""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tallystick.store.shared.server import LOCKED, ServerAway
from tallystick.store.shared.time_limits import ANSWER_SECONDS, CONNECT_SECONDS

# The name of a session: process numbers alone repeat on another server, after a failover for example.
_SERVER = "extract(epoch from pg_postmaster_start_time())"
_NAME = f"pg_backend_pid() || ' ' || {_SERVER}"
# Where the server does not show a state, the statement gets the benefit of the doubt.
_WORKING = f"""
    select pid || ' ' || {_SERVER}, coalesce(state not like 'idle%%', true) from pg_stat_activity
    where pid || ' ' || {_SERVER} = any(%s)
"""

T = TypeVar("T")


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up a statement after a time, or when another thread severs the connection. Nothing is cancelled by that: a
    commit that waits for a synchronous standby, and is cancelled, would be returned as done."""

    session = ""
    hurried = True  # while it is set up, and when it asks about others
    awaited = 0
    _statements = 0
    _severed: tuple[int, str] | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        self._statements = self.awaited = self._statements + 1
        try:
            return super().wait(self._in_time(gen), *args, **kwargs)
        finally:
            self.awaited = 0

    def _in_time(self, answer: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """psycopg resumes this several times a second while no answer comes."""
        seconds = CONNECT_SECONDS if self.hurried else ANSWER_SECONDS
        deadline = time.monotonic() + seconds
        wanted = next(answer)
        while True:
            came = yield wanted
            if not came and (reason := self._why_no_more(deadline, seconds)):
                self._severed = self.awaited, reason
                raise psycopg.OperationalError(reason)
            try:
                wanted = answer.send(came)
            except StopIteration as end:
                value: T = end.value
                return value

    def _why_no_more(self, deadline: float, seconds: float) -> str:
        if self._severed is not None and self._severed[0] == self.awaited:
            return self._severed[1]
        return f"no answer within {seconds:.0f} s" if time.monotonic() > deadline else ""

    @property
    def lost(self) -> bool:
        return self.closed or self._severed is not None

    def sever(self, reason: str) -> None:
        self._severed = self.awaited, reason


def beginning_at(conninfo: str, place: str) -> tuple[str, str]:
    """The address with one of its hosts (`host:port`) put first, and the host that it names first itself."""
    given = conninfo_to_dict(conninfo)
    hosts, ports = (str(given.get(name) or "").split(",") for name in ("host", "port"))
    ports = ports if len(ports) == len(hosts) else ports * len(hosts)
    places = [f"{host}:{port or 5432}" for host, port in zip(hosts, ports, strict=True)]
    if place not in places or "hostaddr" in given:
        return conninfo, places[0]
    order = sorted(range(len(places)), key=lambda number: places[number] != place)
    moved = {"host": ",".join(hosts[number] for number in order), "port": ",".join(ports[number] for number in order)}
    return make_conninfo(conninfo, **moved), places[0]


def connected(conninfo: str, settings: Mapping[str, str]) -> PatientConnection:
    """A connection whose session has these settings.

    Raises:
        ServerAway: no server was reached, or it did not answer in time.
    """
    try:
        # Each statement is prepared at its first use: there are few, and planning one costs more than running it.
        connection = PatientConnection.connect(conninfo, autocommit=True, prepare_threshold=0)
    except psycopg.Error as error:
        # What psycopg leaves behind after a time-out holds the socket, in a cycle that only the collector would find.
        traceback.clear_frames(error.__traceback__)
        if error.pgconn is not None:
            error.pgconn.finish()
        raise away_because(error) from None
    try:
        chosen = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
        found = connection.execute(f"select {_NAME}, {chosen}", prepare=False).fetchone()
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.Error):
            raise away_because(error) from None
        raise
    connection.session = found[0] if found is not None else ""
    connection.hurried = False
    return connection


def working_sessions(connection: PatientConnection, sessions: Sequence[str]) -> dict[str, bool]:
    """Which of these sessions the server has, and whether it works on a statement of theirs."""
    connection.hurried = True
    try:
        found: dict[str, bool] = dict(connection.execute(_WORKING, (list(sessions),), prepare=False).fetchall())
    except psycopg.errors.InsufficientPrivilege:  # it answers, and shows no sessions
        found = dict.fromkeys(sessions, True)
    except psycopg.Error as error:
        raise away_because(error) from None
    connection.hurried = False
    return found


def away_because(error: psycopg.Error) -> ServerAway:
    return ServerAway(_reason(error), isinstance(error, psycopg.errors.DiskFull))


def _reason(error: psycopg.Error) -> str:
    """What the server says, without the lines in which it quotes the statement."""
    said = error.diag
    locked = LOCKED if isinstance(error, psycopg.errors.LockNotAvailable) else ""
    parts = (locked, said.message_primary, said.message_detail, said.message_hint)
    return "; ".join(part for part in parts if part) or str(error).strip() or type(error).__name__
