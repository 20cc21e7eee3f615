"""Threads that send by themselves: the first to find the connection free takes along what the others have put down.

There is one baton. Whoever gets it sends everything that waits as one request, hands each its answer, and passes the
baton to one of those who came meanwhile. With one thread there is no other thread at all. What nobody waits for (the
second half of a block) travels with the next request of anybody, or by the event loop, if there is none for a moment.

Only what goes well is dealt with here. Whatever else may come of a request (a broken connection, a refusal that may
pass, one bad operation among many) is the coalescer's: it gets the operations, and their owners go on waiting.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from tallystick.client.connection.coalescer import Coalescer
from tallystick.client.connection.waiting import WaitingOp, request_body, results_of
from tallystick.client.connection.wire import Wire
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.limits import MIB
from tallystick.core.ops import OpResult

log = logging.getLogger("tallystick.client")

REQUEST_OPS = 192
REQUEST_BYTES = MIB
TICK_SECONDS = 0.001
"""How long what nobody waits for is left for somebody else's request."""
QUIET_TICKS = 100
LOST_SECONDS = 0.5
"""How often a thread that waits looks whether anybody has the baton: one who was interrupted may have lost it."""


class ThreadOp:
    """What a thread has put down: the answer to it, or the baton, wakes it. `done` hears of the end."""

    def __init__(self, done: Callable[[BaseException | None], None] | None = None) -> None:
        self._on_done = done
        self._result: OpResult | None = None
        self._failure: BaseException | None = None
        self._settled = False
        self._claimed = threading.Lock()  # by the baton that it is offered, or by its owner's leaving
        self._awake = threading.Lock()
        self._awake.acquire()

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
        self._wake()

    def offer(self) -> bool:
        """Hand the baton to the thread that waits here; False if nobody does."""
        if self._on_done is not None or self._settled or not self._claimed.acquire(blocking=False):
            return False
        self._wake()
        return True

    def _wake(self) -> None:
        if self._awake.locked():
            self._awake.release()

    # On the thread that waits

    def wait(self, seconds: float) -> bool:
        """Whether it was woken: by the answer, or with the baton."""
        return self._awake.acquire(timeout=max(0.0, seconds))

    def leave(self) -> bool:
        """Nobody waits here any more; False if the baton has just been handed over."""
        return self._claimed.acquire(blocking=False)

    def outcome(self) -> OpResult | None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._result


class Combiner:
    """The way of threads to one broker. Made on the event loop of its coalescer."""

    def __init__(self, ops: Coalescer, request_timeout: float) -> None:
        self.requests = 0  # how many were sent, for tests and measurements
        self._ops = ops
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(ops.address)
        self._request_timeout = request_timeout
        self._waiting: deque[WaitingOp] = deque()
        self._baton = threading.Lock()
        self._leader: int | None = None
        self._sending: list[WaitingOp] = []
        self._closed = False
        self._ticking = False
        self._quiet = 0
        self._seen: WaitingOp | None = None

    # What threads use

    def ask(self, frame: bytes, timeout: float, retry: bool) -> OpResult | None:
        """Send an operation and wait for its answer. Whoever is interrupted meanwhile does not unsend it."""
        waiter = ThreadOp()
        op = WaitingOp(frame, waiter, time.monotonic() + timeout, retry)
        self._put(op)
        if not self._wait(op, waiter, op.deadline):
            op.uncertain = op.uncertain or op in self._sending
            raise op.overdue(self._ops.address, None)
        return waiter.outcome()

    def tell(self, frame: bytes, timeout: float, *, stay: float, done: Callable[[BaseException | None], None]) -> None:
        """Send an operation in any case, and wait for its answer for `stay` seconds.

        `done` hears of it, on any thread.
        """
        waiter = ThreadOp(done)
        op = WaitingOp(frame, waiter, time.monotonic() + timeout, retry=True)
        if stay:
            self._put(op)
            self._wait(op, waiter, time.monotonic() + stay)
        elif not self._goes_by_loop():
            self._waiting.append(op)
            self._rouse()
        else:
            self._hand_over([op])

    def _put(self, op: WaitingOp) -> None:
        if self._goes_by_loop():
            self._hand_over([op])
            return
        self._waiting.append(op)
        if self._baton.acquire(blocking=False):
            self._lead()

    def _goes_by_loop(self) -> bool:
        """In trouble, which the coalescer deals with; or in a signal handler that has interrupted its own thread's
        request, and must not wait for it."""
        return not self._ops.flowing or self._leader == threading.get_ident()

    def _wait(self, op: WaitingOp, waiter: ThreadOp, deadline: float) -> bool:
        """Wait for the answer, and send when it is this thread's turn; False if it did not come in time."""
        ownerless = False
        while not waiter.done():
            left = deadline - time.monotonic()
            if waiter.wait(min(left, LOST_SECONDS)):
                if not waiter.done():
                    self._lead()
            elif left <= 0:
                if waiter.done() or waiter.leave():
                    break
            elif self._baton.acquire(blocking=False):
                self._lead()
            elif self._leader is None and op in self._waiting:
                if ownerless:
                    self._lead()
                ownerless = True
            else:
                ownerless = False
        return waiter.done()

    # With the baton

    def _lead(self) -> None:
        """Send what waits as one request, then pass the baton on."""
        batch: list[WaitingOp] = []
        self._leader = threading.get_ident()
        try:
            batch = self._sending = self._take()
            if batch:
                self._exchange(batch)
        except BaseException:
            # Interrupted: what was sent is in doubt, and sent again; all operations are idempotent.
            self._hand_over(batch, BrokerUnavailable("the thread that was sending this was interrupted"))
            raise
        finally:
            self._sending = []
            self._leader = None
            self._pass_on()

    def _take(self) -> list[WaitingOp]:
        batch: list[WaitingOp] = []
        size = 0
        now = time.monotonic()
        while self._waiting and len(batch) < REQUEST_OPS and size < REQUEST_BYTES:
            try:
                op = self._waiting.popleft()
            except IndexError:  # the event loop has taken it
                break
            if op.worth_sending(now):
                batch.append(op)
                size += len(op.frame)
            else:
                op.fail(op.overdue(self._ops.address, None))
        return batch

    def _exchange(self, batch: list[WaitingOp]) -> None:
        self.requests += 1
        try:
            results = results_of(self._wire.post(request_body(batch), self._request_timeout), len(batch))
        except TallystickError as error:
            self._hand_over(batch, error)
            return
        refused = False
        for op, result in zip(batch, results, strict=True):
            if result is None or result.error is None:
                op.succeed(result)
            else:
                refused = True
        if refused:
            self._on_loop(self._ops.answered, batch, results)

    def _pass_on(self) -> None:
        if self._closed:
            self._wire.close()
        while True:
            waiting = tuple(self._waiting)
            for op in waiting:
                if isinstance(op.receiver, ThreadOp) and op.receiver.offer():
                    return
            self._baton.release()
            # Who came after that look, and found the baton taken, must not wait for nobody.
            if len(self._waiting) <= len(waiting) or not self._baton.acquire(blocking=False):
                return

    # By the event loop

    def _hand_over(self, ops: list[WaitingOp], error: TallystickError | None = None) -> None:
        if ops and not self._on_loop(self._ops.take_over, ops, error):
            for op in ops:
                op.fail(BrokerUnavailable("the client is closed; nothing was sent"))

    def _on_loop(self, function: Callable[..., None], *args: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it is closed
            return False
        return True

    def _rouse(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._on_loop(self._tick)

    def _tick(self) -> None:
        """Send what has waited for a tick and nobody has taken along."""
        first = next(iter(tuple(self._waiting)), None)
        if first is not None and first is self._seen and self._leader is None:
            self._ops.take_over(self._take(), None)
            first = None
        self._seen = first
        self._quiet = 0 if first is not None else self._quiet + 1
        if self._quiet < QUIET_TICKS:
            self._loop.call_later(TICK_SECONDS, self._tick)
            return
        self._quiet = 0
        self._ticking = False
        if self._waiting:
            self._rouse()

    def close(self) -> None:
        """Leave what waits to the coalescer."""
        self._closed = True
        while self._waiting:
            self._ops.take_over(self._take(), None)
        if self._baton.acquire(blocking=False):
            self._wire.close()
            self._baton.release()
