"""Many callers, few requests: send while nothing is in flight, gather while something is.

All operations are idempotent by gid or receipt, so what a broken connection left in doubt is sent again to the
same broker until its caller's time is up. One caller's mistake never fails another caller's operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from tallystick.client.base.refusals import SLOWLY, TURNED_AWAY
from tallystick.client.connection.circuit import Circuit
from tallystick.client.connection.exchange import distrusted
from tallystick.client.connection.waiting import (
    Answered,
    GivenUp,
    HeldBack,
    WaitingOp,
    encode_op,
    request_body,
    results_of,
    separate_guilty,
    without_position,
)
from tallystick.core.backoff import Backoff
from tallystick.core.errors import (
    BrokerUnavailable,
    BrokerUntrusted,
    Busy,
    Moved,
    TallystickError,
    Unauthenticated,
    error_from_code,
)
from tallystick.core.limits import MIB
from tallystick.core.ops import ClientOp, OpResult

Post = Callable[[bytes, float], Awaitable[bytes]]

SWEEP_SECONDS = 0.1
TURNS = 5
"""Turns of the event loop that a request takes from the first caller to the socket."""
WORTH_SHARING = 128


class LoopUnderway:
    """An operation on its way: between its two halves, its task may do something else."""

    def __init__(self, coalescer: Coalescer, op: ClientOp, timeout: float) -> None:
        self._coalescer, self._op, self._timeout = coalescer, op, timeout
        self._answer: asyncio.Future[OpResult | None] | None = None

    def begin(self) -> None:
        coalescer = self._coalescer
        self._answer = (
            asyncio.ensure_future(coalescer.run(self._op, self._timeout))
            if coalescer.full
            else coalescer.submit(self._op, self._timeout)
        )

    async def answer(self) -> OpResult | None:
        return await cast("asyncio.Future[OpResult | None]", self._answer)

    def leave(self) -> None:
        """It is not unsent; what comes of it is not heard."""
        if self._answer is not None:
            self._answer.add_done_callback(_failure_of)


class CoalescerLimits:
    """How much travels together, and how much may wait.

    Several requests of moderate size beat one large one: while the broker works on the first, the next is made here.
    With one at a time the two sides only ever wait for each other.
    """

    def __init__(
        self,
        *,
        in_flight: int = 6,
        request_ops: int = 192,
        request_bytes: int = MIB,
        waiting_ops: int = 50_000,
        waiting_bytes: int = 64 * MIB,
    ) -> None:
        self.in_flight = in_flight
        self.request_ops = request_ops
        self.request_bytes = request_bytes
        self.waiting_ops = waiting_ops
        self.waiting_bytes = waiting_bytes


class Coalescer:
    """The way of operations to one broker. Belongs to one event loop."""

    def __init__(
        self,
        address: str,
        post: Post,
        *,
        limits: CoalescerLimits | None = None,
        request_timeout: float = 10.0,
        backoff: Backoff | None = None,
        circuit: Circuit | None = None,
        on_health: Callable[[bool], None] = lambda healthy: None,
        on_failure: Callable[[TallystickError], None] = lambda error: None,
    ) -> None:
        self.address = address
        self.requests = 0  # how many were sent, for tests and measurements
        self._post = post
        self._limits = limits or CoalescerLimits()
        self._request_timeout = request_timeout
        self._backoff = backoff or Backoff(first_ms=50, cap_ms=2_000)
        self.circuit = circuit or Circuit(address, request_timeout)
        self._on_health = on_health
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[WaitingOp] = deque()
        self._waiting_bytes = 0
        self._let_through: list[WaitingOp] = []  # callers whose one try the next request decides; see `_try_now`
        self.take_along: Callable[[], None] = lambda: None  # called before a request is made
        self._split: deque[list[WaitingOp]] = deque()  # parts of refused requests, sent before anything new
        self._later = HeldBack(self._backoff, self._line_up_again)  # refused one by one, for now
        self._slowly = HeldBack(SLOWLY, self._line_up_again)  # by a broker that turns us away, for now
        self._in_flight: dict[asyncio.Task[None], list[WaitingOp]] = {}
        self._sent_at: dict[asyncio.Task[None], float] = {}
        self._answered: deque[tuple[list[WaitingOp], list[OpResult | None]]] = deque()
        self._turns_left = 0
        self._pump_scheduled = False
        self._pause: asyncio.TimerHandle | None = None
        self._failures = 0
        self._last_failure: TallystickError | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False  # nothing new is taken
        self._ended = False  # and nothing is sent any more

    # What callers use

    async def run(self, op: ClientOp, timeout: float, *, retry: bool = True, waits: bool = False) -> OpResult | None:
        """Hand in an operation, once there is room for it, and wait for its result.

        `waits`: also for a broker whose circuit is open, as background work does.
        """
        if self.full:
            timeout = await self._wait_for_room(timeout, waits)
        return await self.submit(op, timeout, retry=retry, waits=waits)

    def submit(
        self, op: ClientOp, timeout: float, *, retry: bool = True, insists: bool = False, waits: bool = False
    ) -> Answered:
        """Hand in an operation without waiting. The caller looks at `full` first if it can be held back."""
        future: Answered = self._loop.create_future()
        self.add(WaitingOp(encode_op(op), future, self._loop.time() + timeout, retry, insists, waits))
        return future

    def underway(self, op: ClientOp, timeout: float) -> LoopUnderway:
        """An operation that is to be sent, and its answer awaited later."""
        return LoopUnderway(self, op, timeout)

    async def tell(
        self, op: ClientOp, timeout: float, *, stay: float, done: Callable[[BaseException | None], None]
    ) -> None:
        """Hand in an operation that is to be heard in any case, and wait for its answer for `stay` seconds.

        `done` hears of it; also if it was not taken, because the client is closed or too much waits already.
        """
        if self.full:
            done(self.too_much())
            return
        try:
            future = self.submit(op, timeout, insists=True)
        except BrokerUnavailable as closed:
            done(closed)
            return
        future.add_done_callback(lambda answered: done(_failure_of(answered)))
        if stay and self.circuit.state != "open":
            await asyncio.wait((future,), timeout=stay)

    def add(self, entry: WaitingOp) -> None:
        """Hand in an operation that is encoded."""
        if self._closed:
            raise BrokerUnavailable("the client is closed; nothing was sent")
        if self._fails_at_once(entry):
            entry.fail(self.circuit.refusal())
            return
        if self.circuit.state != "closed":
            self._try_now([entry])
        self._waiting.append(entry)
        self._waiting_bytes += len(entry.frame)
        if len(self._waiting) >= self._limits.request_ops:
            self._pump()
        else:
            self._schedule_pump()
        self._keep_sweeping()

    def take_over(self, ops: list[WaitingOp], error: TallystickError | None = None) -> None:
        """Go on with what a thread has put down, or has sent in vain: `error` is what came of it."""
        if self._ended or (self._closed and error is None):
            for op in ops:
                op.fail(error or op.given_up())
            return
        if error is not None:
            self._request_failed(ops, error)
        else:
            refused = [op for op in ops if self._fails_at_once(op)]
            taken = [op for op in ops if op not in refused] if refused else ops
            if self.circuit.state != "closed":
                self._try_now(taken)
            self._waiting.extend(taken)
            self._waiting_bytes += sum(len(op.frame) for op in taken)
            for op in refused:
                op.fail(self.circuit.refusal(uncertain=op.uncertain))
        self._schedule_pump()
        self._keep_sweeping()

    def answered(self, batch: list[WaitingOp], results: list[OpResult | None]) -> None:
        """Tell those whose operations a thread has sent, and who were refused."""
        self._tell(batch, results)
        self._keep_sweeping()

    @property
    def flowing(self) -> bool:
        """Whether threads may send by themselves: the last request was answered, as far as is known."""
        return self._failures == 0 and self.circuit.state == "closed" and not self._closed

    def _fails_at_once(self, entry: WaitingOp) -> bool:
        return not entry.waits and self.circuit.refuses(bool(self._in_flight))

    def _try_now(self, entries: Iterable[WaitingOp]) -> None:
        """Let callers through a circuit that is not closed: the next request is sent without a pause.

        It may be full of background operations, which are ahead in the line. Its failure fails these callers, too.
        Otherwise they would wait behind all retries, with their transactions open.
        """
        callers = [entry for entry in entries if not entry.waits]
        self._let_through += callers
        if callers and self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _fail_let_through(self) -> None:
        """Their try has failed. They are at the end of the line, unless background operations came later."""
        callers, self._let_through = self._let_through, []
        self._fail_refused(callers, sent=False)
        while self._waiting and not self._waiting[-1].waits and self._waiting[-1].receiver.done():
            self._waiting_bytes -= len(self._waiting.pop().frame)

    def fail_waiting(self) -> None:
        """The circuit has opened: fail what waits, but for what is retried in any case.

        After a hang that includes requests in flight. Where connections are refused, those fail by themselves, and say
        for certain whether they were sent.
        """
        for batch in self._in_flight.values() if self.circuit.hangs else ():
            self._fail_refused(batch, sent=True)
        for held in (*self._split, self._later.ops, self._slowly.ops):
            self._fail_refused(held, sent=False)
            held[:] = [entry for entry in held if entry.waits]
        self._fail_refused(self._waiting, sent=False)
        self._waiting = deque(entry for entry in self._waiting if entry.waits)
        self._let_through.clear()
        self._waiting_bytes = sum(len(entry.frame) for entry in self._waiting)
        self._room.set()

    def _fail_refused(self, entries: Iterable[WaitingOp], *, sent: bool) -> None:
        for entry in entries:
            if not entry.waits and not entry.receiver.done():
                entry.uncertain = entry.uncertain or sent
                entry.fail(self.circuit.refusal(uncertain=entry.uncertain))

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._limits.waiting_ops or self._waiting_bytes >= self._limits.waiting_bytes

    def too_much(self) -> Busy:
        return Busy(f"{len(self._waiting)} operations wait for {self.address} already; this one was not sent")

    async def close(self, timeout: float) -> GivenUp:
        """Send what waits, for at most `timeout` seconds; the operations that were given up, by kind."""
        self._closed = True
        if self._busy():
            self._idle.clear()
            with contextlib.suppress(TimeoutError):  # what is left then is counted and failed below
                async with asyncio.timeout(timeout):
                    await self._idle.wait()
        self._ended = True
        left = [entry for entry in self._all() if not entry.receiver.done()]
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in left:
            entry.fail(BrokerUnavailable(f"the client was closed before {self.address} answered"))
        self._later.cancel()
        self._slowly.cancel()
        for timer in (self._pause, self._sweeper):
            if timer is not None:
                timer.cancel()
        return Counter(entry.kind for entry in left)

    # Sending

    def _schedule_pump(self) -> None:
        # Not at once: every task that is ready in this turn of the loop gets its operation into the same request.
        if not self._pump_scheduled and self._pause is None and len(self._in_flight) < self._most_in_flight():
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def under_way(self) -> list[WaitingOp]:
        return [*self._waiting, *(op for batch in self._in_flight.values() for op in batch)]

    def in_flight(self) -> set[object]:
        """The requests that are under way, each as something that is the same as long as it is."""
        return set(self._in_flight)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._waiting:
            self.take_along()
        most = self._most_in_flight()
        while (self._waiting or self._split) and self._pause is None and len(self._in_flight) < most:
            batch = self._split.popleft() if self._split else self._take(self._share())
            if batch:
                task = self._loop.create_task(self._send(batch))
                self._in_flight[task], self._sent_at[task] = batch, time.monotonic()
                task.add_done_callback(self._sent)
        if self._closed and not self._busy():
            self._idle.set()

    def _most_in_flight(self) -> int:
        """One request at a time is enough to find out whether a broker is back."""
        return self._limits.in_flight if self.circuit.state == "closed" else 1

    def _share(self) -> int:
        """How many operations the next request takes: all, or, where they are many, an equal share for each request
        that may be in flight. So the broker works on one while this process makes or reads another."""
        free = self._most_in_flight() - len(self._in_flight)
        share = -(-len(self._waiting) // free)
        return min(self._limits.request_ops, max(share, WORTH_SHARING))

    def _take(self, most: int) -> list[WaitingOp]:
        """The longest waiting operations that fit into one request; a large one may fill it alone."""
        now = self._loop.time()
        batch: list[WaitingOp] = []
        size = 0
        waiting = self._waiting
        while waiting and len(batch) < most:
            length = len(waiting[0].frame)
            if batch and size + length > self._limits.request_bytes:
                break
            entry = waiting.popleft()
            self._waiting_bytes -= length
            if entry.worth_sending(now):
                batch.append(entry)
                size += length
            else:
                entry.fail(entry.overdue(self.address, self._last_failure))
        if not self.full:
            self._room.set()
        return batch

    async def _send(self, batch: list[WaitingOp]) -> None:
        self.requests += 1
        began = time.monotonic()
        try:
            content = await self._post(request_body(batch), self._request_timeout)
            results = results_of(content, len(batch))
        except TallystickError as error:
            error.extra["began"] = began
            failed = batch.copy()
            batch.clear()  # it is in flight no more
            self._request_failed(failed, error)
            return
        self._failures = 0
        self._last_failure = None
        self._let_through.clear()
        self.circuit.answered()
        self._on_health(True)
        if len(self._in_flight) == 1 and self._turns_left == 0:
            self._tell(batch, results)  # no other answer can be near
            return
        self._answered.append((batch, results))
        if self._turns_left == 0:
            self._next_turn()

    def _next_turn(self) -> None:
        """Tell one request's callers, and give what they ask for next the time to be on its way before the next.

        Answers often come together, because the broker made them durable together. All told at once, their callers
        would all be heard before the first new request left, and the broker would stand idle meanwhile.
        """
        if self._turns_left > 0:
            self._turns_left -= 1
        if self._turns_left == 0 and self._answered:
            self._tell(*self._answered.popleft())
            self._turns_left = TURNS
        if self._turns_left > 0:
            self._loop.call_soon(self._next_turn)
        elif self._closed and not self._busy():
            self._idle.set()

    def _tell(self, batch: list[WaitingOp], results: list[OpResult | None]) -> None:
        for entry, result in zip(batch, results, strict=True):
            if result is None or result.error is None:
                entry.succeed(result)
            else:
                refusal = error_from_code(result.error, result.detail, result.field)
                refusal.extra["stale"] = result.stale
                self._op_failed(entry, refusal)

    def _sent(self, task: asyncio.Task[None]) -> None:
        batch = self._in_flight.pop(task)
        del self._sent_at[task]
        if not task.cancelled() and (defect := task.exception()) is not None:
            for entry in batch:
                entry.fail(BrokerUnavailable(f"sending failed: {defect!r}"))
        if self._waiting or self._split:
            self._schedule_pump()
        if self._closed and not self._busy():
            self._idle.set()

    # Failing

    def _op_failed(self, entry: WaitingOp, error: TallystickError) -> None:
        now = self._loop.time()
        entry.note(error, now)
        if isinstance(error, Moved):
            self._on_failure(error)
        if isinstance(error, TURNED_AWAY):
            self._turned_away(entry, error)
            return
        if not (error.retryable and entry.retry):
            entry.fail(error)
            return
        if not entry.worth_sending(now):
            entry.fail(entry.overdue(self.address, error))
            return
        self._later.add(entry)

    def _turned_away(self, entry: WaitingOp, error: TallystickError) -> None:
        """Whoever waits is told at once. What is to be heard in any case is said again until its time is up: somebody
        may give us another token meanwhile."""
        if entry.insists and entry.worth_sending(self._loop.time()):
            self._slowly.add(entry)
        else:
            entry.fail(entry.turned_away(error, self.address))

    def _line_up_again(self, entries: list[WaitingOp]) -> None:
        self._put_back(entries)
        self._schedule_pump()

    def _request_failed(self, batch: list[WaitingOp], error: TallystickError) -> None:
        if error.retryable or isinstance(error, BrokerUntrusted):
            self._broker_failed(batch, error)
            return
        self._let_through.clear()
        self.circuit.answered()  # with a refusal
        if isinstance(error, Unauthenticated):  # all of them alike
            for entry in batch:
                self._op_failed(entry, error)
        elif len(batch) == 1 and isinstance(error, TURNED_AWAY):
            self._op_failed(batch[0], without_position(error))
        elif len(batch) == 1:
            batch[0].fail(without_position(error))
        else:
            self._split.extend(separate_guilty(batch, error))

    def _broker_failed(self, batch: list[WaitingOp], error: TallystickError) -> None:
        """Nobody's own mistake: those who want it are sent again, to this broker and no other, after a pause."""
        self._failures += 1
        self._last_failure = error
        self._on_health(False)
        self._on_failure(error)
        again: list[WaitingOp] = []
        now = self._loop.time()
        for entry in batch:
            entry.note(error, now)
            if not entry.retry:
                entry.fail(error)
            elif distrusted(error) and not entry.insists:
                entry.fail(entry.turned_away(error, self.address))
            elif self.circuit.state != "closed" and not entry.waits:
                entry.fail(self.circuit.refusal(uncertain=entry.uncertain))
            elif entry.worth_sending(now):
                again.append(entry)
            else:
                entry.fail(entry.overdue(self.address, error))
        if self._let_through and self.circuit.state != "closed":
            self._fail_let_through()
        self._put_back(again)
        if self._pause is None:
            wait = self.circuit.next_try(self._backoff.wait_ms(self._failures) / 1000)
            wait = error.extra.get("retry_after") or wait
            self._pause = self._loop.call_later(wait, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._schedule_pump()

    def hurry(self) -> None:
        """Try again now: what the pause was for lies where nothing is sent any more."""
        self._later.hurry()
        self._slowly.hurry()
        if self._pause is not None:
            self._pause.cancel()
            self._resume()

    def _put_back(self, entries: list[WaitingOp]) -> None:
        self._waiting.extendleft(reversed(entries))
        self._waiting_bytes += sum(len(entry.frame) for entry in entries)

    # Time and room

    def _sweep(self) -> None:
        """Fail those whose time is up. One timer for all: one for each operation would cost more than sending it."""
        self._sweeper = None
        now = self._loop.time()
        for task, batch in self._in_flight.items():
            if self._fail_overdue(batch, now, sent=True) and self.circuit.answered_at < self._sent_at[task]:
                self._on_health(False)  # others need not wait for the end of this request to prefer another broker
        for held in (*self._split, self._later.ops, self._slowly.ops):
            self._fail_overdue(held, now, sent=False)
        if self._fail_overdue(self._waiting, now, sent=False):
            self._waiting = deque(entry for entry in self._waiting if entry.deadline > now)
            self._waiting_bytes = sum(len(entry.frame) for entry in self._waiting)
            self._room.set()
        if self._busy():
            self._keep_sweeping()

    def _keep_sweeping(self) -> None:
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def _fail_overdue(self, entries: Iterable[WaitingOp], now: float, *, sent: bool) -> bool:
        late = [entry for entry in entries if entry.deadline <= now]
        for entry in late:
            entry.uncertain = entry.uncertain or sent
            entry.fail(entry.overdue(self.address, self._last_failure))
        return bool(late)

    async def _wait_for_room(self, timeout: float, waits: bool) -> float:
        """Wait until an operation may be handed in; how much of the time is left."""
        deadline = self._loop.time() + timeout
        while self.full:
            if self.circuit.state != "closed" and not waits:
                raise self.circuit.refusal()
            self._room.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.wait()
            except TimeoutError:
                raise self.too_much() from None
        return deadline - self._loop.time()

    def _busy(self) -> bool:
        held = self._later.ops or self._slowly.ops
        return bool(self._waiting or self._in_flight or self._split or held or self._answered)

    def _all(self) -> Iterable[WaitingOp]:
        for batch in (self._waiting, self._later.ops, self._slowly.ops, *self._split, *self._in_flight.values()):
            yield from batch


def _failure_of(answered: Answered) -> BaseException | None:
    return asyncio.CancelledError() if answered.cancelled() else answered.exception()
