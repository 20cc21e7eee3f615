"""Who is told the answer to an operation that a thread has put down: a thread that waits, or a function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

from tallystick.core.ops import OpResult

log = logging.getLogger("tallystick.client")

Done = Callable[[BaseException | None], None]

_LEFT = object()


class Told:
    """Nobody waits; `done` hears of the end, on whatever thread it comes."""

    def __init__(self, done: Done | None) -> None:
        self._on_done = done
        self.settled = False
        self._result: OpResult | None = None
        self._failure: BaseException | None = None

    def done(self) -> bool:
        return self.settled

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: OpResult | None) -> None:
        self._result = result
        self._settle()

    def set_exception(self, failure: BaseException) -> None:
        self._failure = failure
        self._settle()

    def _settle(self) -> None:
        self.settled = True
        if self._on_done is not None:
            try:
                self._on_done(self._failure)
            except Exception:
                log.exception("what follows an answer failed")  # and must not keep others from theirs


class Awaited(Told):
    """A thread waits: the answer wakes it, or the baton, with which it is to send by itself."""

    def __init__(self, done: Done | None = None) -> None:
        super().__init__(done)
        self.waits = False  # and would send, if it got the baton
        self.led = False  # whether the baton that was handed over here has been used
        self._seat: dict[int, object] = {}  # who has it first: the baton that is offered, or the owner who leaves
        self._following: Awaited | None = None  # who is woken by the one who waits here
        self._awake = threading.Lock()
        self._awake.acquire()

    def _settle(self) -> None:
        super()._settle()
        self.wake()

    def settle_asleep(self, result: OpResult | None) -> None:
        """Have the answer, and be woken by `wake_in_turn`."""
        self._result = result
        super()._settle()

    def wake_before(self, following: Awaited) -> None:
        self._following = following
        if self._seat.get(0) is _LEFT:
            self._wake_following()

    def offer(self) -> bool:
        """Hand the baton to the thread that waits here; False if nobody does."""
        mine = object()
        if not self.would_lead() or self._seat.setdefault(0, mine) is not mine:
            return False
        self.wake()
        return True

    def would_lead(self) -> bool:
        return self.waits and not self.settled and not self._seat

    def wake(self) -> None:
        try:
            self._awake.release()
        except RuntimeError:  # somebody else has just woken it
            log.debug("woken twice")

    # On the thread that waits

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it was woken in time: by the answer, or with the baton."""
        woken = self._awake.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        self._wake_following()
        return woken

    def _wake_following(self) -> None:
        if self._following is not None:
            following, self._following = self._following, None
            following.wake()

    def leave(self) -> bool:
        """Nobody waits here any more; False if the baton has been handed over."""
        left = self._seat.setdefault(0, _LEFT) is _LEFT
        self._wake_following()
        return left

    def outcome(self) -> OpResult | None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._result


def wake_in_turn(waiting: Sequence[Awaited]) -> None:
    """Wake one of those who have their answer, who wakes the next: all at once they would queue up for Python's lock,
    and each switch in that queue costs more than its turn. A thread that has gone meanwhile wakes the next by leaving;
    should one be interrupted even there, the next looks by itself before long."""
    for one, following in pairwise(waiting):
        one.wake_before(following)
    for first in waiting[:1]:
        first.wake()
