"""Limits the attempts to connect to a server while they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.core.backoff import Backoff
from tallystick.store.shared.server import ServerAway
from tallystick.store.shared.time_limits import OUTAGE_SECONDS

AT_ONCE = 4  # attempts in flight while none has failed
BACKOFF = Backoff(first_ms=150, cap_ms=1_250)  # with its jitter at most one attempt a second in the end


class Attempts:
    """The attempts of one process to connect to one server.

    While they succeed, a few run at once. After a failure there is one at a time, with a back-off in between. All
    other callers wait for the next attempt: if it fails, they fail with it; if it succeeds, they connect themselves.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._failed = 0  # attempts in a row
        self._failures = 0  # in all
        self._reason = ""
        self._not_before = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait until an attempt is allowed; the block makes it.

        Raises:
            ServerAway: the attempt that this one waited for has failed.
        """
        self._begin()
        try:
            yield
        except BaseException as error:
            self._end(f"{error}".strip() or type(error).__name__)
            raise
        self._end("")

    def _begin(self) -> None:
        with self._changed:
            failures, until = self._failures, time.monotonic() + OUTAGE_SECONDS
            while (wait := self._wait_seconds()) > 0:
                left = until - time.monotonic()
                if self._failures != failures or left <= 0:
                    raise ServerAway(self._reason or f"no connection within {OUTAGE_SECONDS:.0f} s")
                self._changed.wait(min(wait, left))
            self._under_way += 1

    def _wait_seconds(self) -> float:
        """For which no attempt is allowed. The end of an attempt notifies all who wait."""
        if self._under_way >= (1 if self._failed else AT_ONCE):
            return OUTAGE_SECONDS
        return self._not_before - time.monotonic() if self._failed else 0.0

    def _end(self, reason: str) -> None:
        """`reason`: why the attempt failed; empty if it succeeded."""
        with self._changed:
            self._under_way -= 1
            if reason:
                self._reason = reason
                self._failed += 1
                self._failures += 1
                self._not_before = time.monotonic() + BACKOFF.wait_ms(self._failed) / 1000
            else:
                self._failed = 0
            self._changed.notify_all()
