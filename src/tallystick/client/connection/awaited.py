"""Who is told the answer to an operation that a thread has put down: a thread that waits, or a function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tallystick.core.ops import OpResult

log = logging.getLogger("tallystick.client")

Done = Callable[[BaseException | None], None]

_LEFT = object()


class Told:
    """Nobody waits; `done` hears of the end, on whatever thread it comes."""

    def __init__(self, done: Done | None) -> None:
        self._on_done = done
        self._settled = False
        self._result: OpResult | None = None
        self._failure: BaseException | None = None

    def done(self) -> bool:
        return self._settled

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: OpResult | None) -> None:
        self._result = result
        self._settle()

    def set_exception(self, failure: BaseException) -> None:
        self._failure = failure
        self._settle()

    def _settle(self) -> None:
        self._settled = True
        if self._on_done is not None:
            try:
                self._on_done(self._failure)
            except Exception:
                log.exception("what follows an answer failed")  # and must not keep others from theirs


class Awaited(Told):
    """A thread waits: the answer wakes it, or the baton, with which it is to send by itself."""

    def __init__(self, done: Done | None = None) -> None:
        super().__init__(done)
        self.led = False  # whether the baton that was handed over here has been used
        self._seat: dict[int, object] = {}  # who has it first: the baton that is offered, or the owner who leaves
        self._awake = threading.Lock()
        self._awake.acquire()

    def _settle(self) -> None:
        super()._settle()
        self._wake()

    def offer(self) -> bool:
        """Hand the baton to the thread that waits here; False if nobody does."""
        mine = object()
        if self._settled or self._seat.setdefault(0, mine) is not mine:
            return False
        self._wake()
        return True

    def _wake(self) -> None:
        try:
            self._awake.release()
        except RuntimeError:  # somebody else has just woken it
            log.debug("woken twice")

    # On the thread that waits

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it was woken in time: by the answer, or with the baton."""
        return self._awake.acquire(timeout=-1 if seconds is None else max(0.0, seconds))

    def leave(self) -> bool:
        """Nobody waits here any more; False if the baton has been handed over."""
        return self._seat.setdefault(0, _LEFT) is _LEFT

    def outcome(self) -> OpResult | None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._result
