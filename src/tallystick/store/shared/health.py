"""Finds out that a server has gone silent, for all connections of this process to it.

A server that hangs, a load balancer that has lost its backend, or a network that drops packets leave connections open
and send nothing. A statement that takes long looks the same. So the server is asked, over a new connection, whether it
still works on the statement.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from tallystick.store.shared.attempts import Attempts
from tallystick.store.shared.server import ServerAway
from tallystick.store.shared.time_limits import LOST_SECONDS, SUSPECT_SECONDS

log = logging.getLogger("tallystick.store.shared")

CHECK_SECONDS = 1.0
DETOUR_SECONDS = 30.0


class AwaitedStatement(Protocol):
    """A statement whose answer a thread waits for."""

    @property
    def session(self) -> str:
        """The name of its session at the server."""

    @property
    def silent_seconds(self) -> float: ...

    def confirm(self) -> None:
        """The server works on it: its silence counts from now."""

    def sever(self, reason: str) -> None:
        """Have the waiting thread raise an error. No effect if the answer has come."""


class Pool(Protocol):
    def drop_idle(self) -> None:
        """Close what is idle, and keep nothing that was connected before."""

    def silent(self, seconds: float) -> Sequence[AwaitedStatement]:
        """The statements that have waited for so long."""

    def working(self, sessions: Sequence[str]) -> Mapping[str, bool]:
        """Ask the server over a new connection which of these sessions exist, and whether they work.

        Raises:
            ServerAway: the server did not answer in time, or refused.
        """


class ServerHealth:
    """Shared by all pools of a process that lead to one server."""

    def __init__(self) -> None:
        self.attempts = Attempts()
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[Pool] = weakref.WeakSet()
        self._watching: threading.Thread | None = None
        self._detour, self._detour_until = "", 0.0

    @property
    def detour(self) -> str:
        """The host to try first, because the hosts before it failed a moment ago; empty if there is none. A host that
        does not answer would hold up every new connection until its time-out."""
        return self._detour if time.monotonic() < self._detour_until else ""

    def reached(self, host: str, first: str) -> None:
        """A connection was made to `host`; `first` is the one that the address names first."""
        if host != first and self.detour != host:
            self._detour, self._detour_until = host, time.monotonic() + DETOUR_SECONDS

    def add(self, pool: Pool) -> None:
        with self._lock:
            self._pools.add(pool)

    def watch(self) -> None:
        """Make sure that the thread runs which looks for silent statements; it ends with the last pool."""
        if self._watching is None or not self._watching.is_alive():  # not alive: in a process that was forked
            with self._lock:
                if self._watching is None or not self._watching.is_alive():
                    this = weakref.ref(self)
                    self._watching = threading.Thread(target=_watch, args=(this,), name="engine health", daemon=True)
                    self._watching.start()

    def suspect(self) -> None:
        """One connection was lost: drop all idle ones, which may be as dead."""
        for pool in self._known():
            pool.drop_idle()

    def check(self) -> None:
        """Give up the statements that the server does not work on."""
        silent = [(pool, statement) for pool in self._known() for statement in pool.silent(SUSPECT_SECONDS)]
        if not silent:
            return
        try:
            working = silent[0][0].working([statement.session for _, statement in silent])
        except ServerAway as error:
            self.suspect()
            self._give_up([one for _, one in silent if one.silent_seconds >= LOST_SECONDS], f"; {error}")
            return
        lost = [one for _, one in silent if one.session not in working]
        idle = [one for _, one in silent if not working.get(one.session, True)]
        if lost or idle:
            self.suspect()
        for _, one in silent:
            if working.get(one.session):
                one.confirm()
        self._give_up(lost, "; the server does not have this session any more")
        self._give_up(
            [one for one in idle if one.silent_seconds >= LOST_SECONDS], "; the server does not work on the statement"
        )

    def _give_up(self, statements: Sequence[AwaitedStatement], why: str) -> None:
        for one in statements:
            one.sever(f"no answer for {one.silent_seconds:.0f} s{why}")

    def _known(self) -> list[Pool]:
        with self._lock:
            return list(self._pools)


def _watch(this: weakref.ref[ServerHealth]) -> None:
    while (health := this()) is not None:
        try:
            health.check()
        except Exception:  # without this thread, a silent server would be waited for much longer
            log.exception("the connections to the shared store could not be checked; they are checked again")
        del health
        time.sleep(CHECK_SECONDS)


_known: weakref.WeakValueDictionary[str, ServerHealth] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def health_of(address: str) -> ServerHealth:
    """The one of this process for a server."""
    with _lock:
        found = _known.get(address)
        if found is None:
            found = _known[address] = ServerHealth()
        return found
