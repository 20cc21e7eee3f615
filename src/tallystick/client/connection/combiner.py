"""Threads that send by themselves: the first to find the connection free takes along what the others have put down.

There is one baton. Whoever gets it sends everything that waits as one request, hands each its answer, and passes the
baton to one of those who came meanwhile. With one thread there is no other thread at all. What nobody waits for (the
second half of a block) travels with the next request of anybody, or by the event loop, if there is none for a moment.

Only what goes well is dealt with here. Whatever else may come of a request (a broken connection, a refusal that may
pass, one bad operation among many) is the coalescer's: it gets the operations, and their owners go on waiting.

A thread can be interrupted between any two steps (Ctrl-C, a signal handler that begins a block of its own), so the
baton can be lost. It saves requests and protects nothing: a connection belongs to one sender at a time anyway, and
every operation may be sent twice. So whoever has waited for a second in vain goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from tallystick.client.base import forks
from tallystick.client.connection.awaited import Awaited, Done, Told, wake_in_turn
from tallystick.client.connection.coalescer import Coalescer
from tallystick.client.connection.exchange import LEAVE_SECONDS
from tallystick.client.connection.waiting import WaitingOp, request_body, results_of
from tallystick.client.connection.wire import Wire, WireConnection
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.limits import MIB
from tallystick.core.ops import OpResult
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials

log = logging.getLogger("tallystick.client")

REQUEST_OPS = 192
REQUEST_BYTES = MIB
WAITING_OPS = 10_000
"""How much of what nobody waits for is kept for a broker that does not answer; the rest is found by its check-back, or
in the outbox."""
TICK_SECONDS = 0.001
"""How long what nobody waits for is left for somebody else's request, if there was none of late."""
BUSY_TICK_SECONDS = 0.005
"""The same while threads send one request after another: each tick takes Python's lock from one of them."""
BUSY_WINDOW_SECONDS = 0.02
BUSY_TICKS = 50
QUIET_TICKS = 20
LOOK_SECONDS = 0.5
"""How often a thread that waits looks whether anybody sends for it."""
LEAST_SECONDS = 0.25
"""What a request gets at least, however little time its sender has left: it carries others' operations, too."""
LOOP_GONE_SECONDS = 5.0
"""How long after its time an answer is waited for: the loop tells everybody in time, unless it has ended."""
LEADER_LOOK_SECONDS = 0.002
MARGIN_SECONDS = 1.0


class _Request:
    """What a thread is sending, and until when at the latest."""

    __slots__ = ("_until", "batch", "began", "connection", "seconds")

    def __init__(self, seconds: float) -> None:
        self.batch: list[WaitingOp] = []
        self.connection: WireConnection | None = None
        self.seconds = seconds
        self.began = time.monotonic()
        self._until = self.began + seconds + MARGIN_SECONDS

    def over(self) -> bool:
        return time.monotonic() > self._until


class Underway:
    """An operation on its way to one broker: between its two halves, its thread may do something else.

    Whoever is interrupted meanwhile does not unsend it, and calls `leave`, at any moment, as often as they like.
    """

    def __init__(self, combiner: Combiner, op: WaitingOp, awaited: Awaited, until: float) -> None:
        self._combiner = combiner
        self._op, self._awaited, self._until = op, awaited, until
        self._request: _Request | None = None  # sent by this thread, its answer not yet received

    def begin(self) -> None:
        """Put it down, and send what waits if nobody else does."""
        combiner = self._combiner
        try:
            if combiner.goes_by_loop():
                combiner.hand_over([self._op])
                return
            combiner.waiting.append(self._op)
            if combiner.baton.acquire(blocking=False):
                self._request = combiner.new_request(self._until)
                combiner.send(self._request)
        except BaseException:
            self.leave()
            raise

    def wait(self) -> None:
        """Wait until it is answered, or its time is up; send when it is this thread's turn, or nobody's for a while."""
        combiner, awaited = self._combiner, self._awaited
        try:
            if self._request is not None:
                self._receive()
            awaited.waits = True
            if not awaited.settled and combiner.still_here(self._op) and combiner.baton.acquire(blocking=False):
                self._lead()
            looks = 0
            while not awaited.settled and (left := self._until - time.monotonic()) > 0:
                if awaited.wait(min(left, LOOK_SECONDS)):
                    if not awaited.settled:
                        awaited.led = True
                        self._lead()
                    continue
                looks = looks + 1 if combiner.still_here(self._op) else 0
                if looks > 1:
                    self._lead()
        finally:
            self.leave()

    def answer(self) -> OpResult | None:
        """Wait for the answer."""
        self.wait()
        if not self._awaited.settled and not self._combiner.answers_late(self._op, self._awaited):
            raise self._op.overdue(self._combiner.address, None)
        return self._awaited.outcome()

    def leave(self) -> None:
        """Wait no longer. What this thread has sent is in doubt then, and sent again: operations are idempotent."""
        request, self._request = self._request, None
        if request is not None:
            self._combiner.interrupted(request)
        if not self._awaited.leave() and not self._awaited.led:
            self._awaited.led = True
            self._combiner.pass_on()
        if not self._awaited.settled:
            self._combiner.rouse()

    def _lead(self) -> None:
        """With the baton: send what waits as one request, and pass the baton on."""
        self._request = self._combiner.new_request(self._until)
        self._combiner.send(self._request)
        self._receive()

    def _receive(self) -> None:
        request = self._request
        if request is not None:
            self._combiner.receive(request)
            self._request = None


class Combiner:
    """The way of threads to one broker. Made on the event loop of its coalescer."""

    def __init__(
        self, ops: Coalescer, request_timeout: float, way: str = "", credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self.requests = 0  # how many were sent, for tests and measurements
        self.address = ops.address
        self._ops = ops
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(way or ops.address, credentials)
        ops.take_along = self._go_along
        self._request_timeout = request_timeout
        self.waiting: deque[WaitingOp] = deque()
        self.baton = threading.Lock()
        self._sending: dict[int, _Request] = {}  # by thread
        self._closed = False
        self._inherited = False
        self._ticking = False
        self._ticks = 0  # for how long what is first in line, or that nobody is, has been so
        self._first: WaitingOp | None = None
        self._window = (0.0, 0)  # since when requests are counted, and how many there had been
        self._tick_seconds = TICK_SECONDS
        forks.watch(self)

    # What threads use

    def ask(self, frame: bytes, timeout: float, retry: bool) -> Underway:
        """An operation whose answer is waited for, to be begun."""
        awaited = Awaited()
        op = WaitingOp(frame, awaited, time.monotonic() + timeout, retry)
        return Underway(self, op, awaited, op.deadline)

    def tell(self, frame: bytes, timeout: float, *, stay: float, done: Done) -> None:
        """Send an operation in any case, and wait for its answer for `stay` seconds.

        `done` hears of it, on any thread.
        """
        now = time.monotonic()
        if stay and self._ops.circuit.state != "open":
            awaited = Awaited(done)
            insistent = WaitingOp(frame, awaited, now + timeout, retry=True, insists=True)
            underway = Underway(self, insistent, awaited, now + stay)
            underway.begin()
            underway.wait()
            return
        op = WaitingOp(frame, Told(done), now + timeout, retry=True, insists=True)
        if self._ops.full or len(self.waiting) >= WAITING_OPS:
            op.fail(self._ops.too_much())
        elif self.goes_by_loop():
            self.hand_over([op])
        else:
            self.waiting.append(op)
            self.rouse()

    # For an operation on its way

    def goes_by_loop(self) -> bool:
        """In trouble, which the coalescer deals with; or in a signal handler that has interrupted its own thread's
        request, and must not wait for it."""
        thread = threading.get_ident()
        if thread in self._sending and self._sending[thread].over():
            self._sending.pop(thread, None)  # it was interrupted at the very end of a request
        return thread in self._sending or not self._ops.flowing

    def still_here(self, op: WaitingOp) -> bool:
        """Whether nobody has taken it."""
        if self._inherited:
            raise BrokerUnavailable("the process was forked in the middle of a request, which is the parent's")
        return op in self.waiting

    def answers_late(self, op: WaitingOp, awaited: Awaited) -> bool:
        """Whether the answer comes after all. If the coalescer has the operation, it knows best what to say."""
        sent = any(op in request.batch for request in tuple(self._sending.values()))
        op.uncertain = op.uncertain or sent
        if not sent and op not in self.waiting:
            awaited.wait(LOOP_GONE_SECONDS)
        return awaited.settled

    def new_request(self, until: float) -> _Request:
        # To a tenth of a second: a socket need not be told of another time for each request.
        return _Request(min(self._request_timeout, max(round(until - time.monotonic() + 0.05, 1), LEAST_SECONDS)))

    def send(self, request: _Request) -> None:
        """Send what waits as one request."""
        self._sending[threading.get_ident()] = request
        self._take(request.batch)
        if not request.batch:
            return
        self.requests += 1
        try:
            request.connection = self._wire.send(request_body(request.batch), request.seconds)
        except TallystickError as error:
            error.extra["began"] = request.began
            self.hand_over(request.batch, error)
            request.batch = []

    def receive(self, request: _Request) -> None:
        """Hand everybody their answers, and pass the baton on."""
        connection, request.connection = request.connection, None
        if connection is not None:
            try:
                results = results_of(self._wire.receive(connection), len(request.batch))
            except TallystickError as error:
                error.extra["began"] = request.began
                self.hand_over(request.batch, error)
            else:
                circuit = self._ops.circuit
                circuit.answered_at = time.monotonic()
                if circuit.troubled:
                    self._on_loop(circuit.answered)
                self._answered(request.batch, results)
            request.batch = []
        self._end(request)

    def interrupted(self, request: _Request) -> None:
        if request.connection is not None:
            self._wire.drop(request.connection)
        for op in request.batch:
            op.uncertain = True
        self.hand_over(request.batch)
        self._end(request)

    def _end(self, request: _Request) -> None:
        thread = threading.get_ident()
        if self._sending.get(thread) is request:
            del self._sending[thread]
        self.pass_on()

    def _take(self, batch: list[WaitingOp]) -> None:
        """Fill a request with those that have waited longest; a large one may fill it alone."""
        size = 0
        waiting = self.waiting
        try:
            while len(batch) < REQUEST_OPS:
                op = waiting[0]
                size += len(op.frame)
                if batch and size > REQUEST_BYTES:
                    break
                batch.append(op)  # before it is taken: who is interrupted here has it sent twice rather than never
                taken = waiting.popleft()
                if taken is not op:
                    batch.append(taken)
        except IndexError:  # the last one was taken, by this thread or another
            pass
        now = time.monotonic()
        for op in tuple(batch):
            if not op.worth_sending(now):
                batch.remove(op)
                op.fail(op.overdue(self.address, None))

    def _answered(self, batch: list[WaitingOp], results: list[OpResult | None]) -> None:
        refused = False
        asleep: list[Awaited] = []
        for op, result in zip(batch, results, strict=True):
            if result is not None and result.error is not None:
                refused = True
            elif isinstance(op.receiver, Awaited) and not op.receiver.settled:
                op.receiver.settle_asleep(result)
                asleep.append(op.receiver)
            else:
                op.succeed(result)
        wake_in_turn(asleep)
        if refused:
            self._on_loop(self._ops.answered, batch, results)

    def pass_on(self) -> None:
        """Hand the baton to one who waits for it, or leave it for whoever comes."""
        if self._closed:
            self._wire.close()
        while True:
            for receiver in self._waiting_threads():
                if receiver.offer():
                    return
            try:
                self.baton.release()
            except RuntimeError:
                log.debug("somebody has gone on without the baton, and is back")
            # Who began to wait after that look, and found the baton taken, must not wait for nobody.
            waiting = self._waiting_threads()
            if not any(one.would_lead() for one in waiting) or not self.baton.acquire(blocking=False):
                return

    def _waiting_threads(self) -> list[Awaited]:
        if not self.waiting:
            return []
        return [op.receiver for op in tuple(self.waiting) if isinstance(op.receiver, Awaited)]

    # By the event loop

    def hand_over(self, ops: list[WaitingOp], error: TallystickError | None = None) -> None:
        if ops and not self._on_loop(self._ops.take_over, ops, error):
            for op in ops:
                op.fail(error or op.given_up())

    def _on_loop(self, function: Callable[..., None], *args: object) -> bool:
        if self._inherited:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # it is closed
            return False
        return True

    def rouse(self) -> None:
        if not self._ticking:
            self._on_loop(self._start_ticking)

    def _start_ticking(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._tick()

    def _tick(self) -> None:
        """Send what has waited for a tick and nobody has taken along; a thread that is sending gets a while for it."""
        first = next(iter(tuple(self.waiting)), None)
        self._ticks = self._ticks + 1 if first is self._first else 0
        if first is not None and self._ticks >= (BUSY_TICKS if self._sending else 1):
            self.flush()
            first = None
        self._first = first
        if first is not None or self._ticks < QUIET_TICKS:
            self._loop.call_later(self._next_tick(), self._tick)
            return
        self._ticks = 0
        self._ticking = False
        if self.waiting:  # who has come since found it ticking
            self.rouse()

    def _next_tick(self) -> float:
        """Long, if there was a request in each such time of late: then the next one is not far."""
        now = self._loop.time()
        began, requests = self._window
        if now - began > BUSY_WINDOW_SECONDS:
            busy = (self.requests - requests) * BUSY_TICK_SECONDS > now - began
            self._tick_seconds = BUSY_TICK_SECONDS if busy else TICK_SECONDS
            self._window = now, self.requests
        return self._tick_seconds

    def _go_along(self) -> None:
        """A request of the event loop's takes along what nobody waits for. Threads that wait send by themselves."""
        if self.waiting and not self._waiting_threads():
            self.flush()

    def under_way(self) -> list[WaitingOp]:
        return [*self.waiting, *(op for request in tuple(self._sending.values()) for op in request.batch)]

    def in_flight(self) -> set[object]:
        """The requests that threads wait for, each as something that is the same as long as it is."""
        return set(self._sending.values())

    def flush(self) -> None:
        """Have what nobody waits for sent now, by the event loop."""
        while self.waiting:
            batch: list[WaitingOp] = []
            self._take(batch)
            self._ops.take_over(batch, None)

    def fail_waiting(self) -> None:
        """The circuit has opened: have what waits failed; after a hang, also what threads have sent."""
        self.flush()
        if self._ops.circuit.hangs:
            self._wire.interrupt()

    def point_to(self, address: str, *, cut: bool) -> None:
        """Have threads send to another address from now on; `cut` off, after a moment, what they wait for at the old
        one."""
        left = self._wire.point_to(address)
        if cut and left:
            self._loop.call_later(LEAVE_SECONDS, self._wire.interrupt, left)

    async def close(self, timeout: float) -> None:
        """Leave what waits to the coalescer, once the thread that is sending has its answer."""
        self._closed = True
        self.flush()
        deadline = self._loop.time() + timeout
        while self._sending and self._loop.time() < deadline:  # noqa: ASYNC110 - threads know of no event of the loop's
            await asyncio.sleep(LEADER_LOOK_SECONDS)
        self.flush()
        self._wire.close()
        self._wire.interrupt()  # whoever has had no answer until now hears of the end

    def after_fork(self) -> None:
        """In a forked child: whoever was sending is the parent's, and so are the sockets and the event loop."""
        self._inherited = True
        self._wire.after_fork()
