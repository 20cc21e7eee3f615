"""`MemoryBroker`: a real broker in this process, in memory, with what a test wants to ask and to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

from tallystick.broker.door import BrokerDoor
from tallystick.client.async_client import AsyncClient
from tallystick.client.base.message import Message
from tallystick.client.base.times import milliseconds
from tallystick.client.client import Client
from tallystick.core.clock import SystemClock
from tallystick.core.errors import NotFound, TallystickError
from tallystick.core.ops import Outcome
from tallystick.core.wire import TransactionView
from tallystick.testing import consumers, expectations, view
from tallystick.testing.arrivals import arrive, on_own_loop, runtimes_at
from tallystick.testing.expectations import ANYTHING, Expected, Situation
from tallystick.testing.making import CallsAre, broker_maker
from tallystick.testing.serving import BrokerThread, LostAnswers
from tallystick.testing.view import RecordedCall

T = TypeVar("T")

Losable = Literal["prepare", "commit", "rollback", "send"]

LOOK_SECONDS = 0.005
ASK_AGAIN_SECONDS = 0.5


class MovedClock(SystemClock):
    """The machine's clock, set forward by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def elapsed_ms(self) -> int:
        return super().elapsed_ms() + self.ahead_ms


class MemoryBroker:
    """A broker in this process: `with MemoryBroker() as broker: Client(broker.url, group="shop")`.

    It serves HTTP on a free loopback port, on a thread with an event loop of its own, and keeps everything in memory.
    Clients of this and of other processes reach it as they reach any broker.

    `calls` says what becomes of calls: they are `kept`, so that a test can look at them and nobody is called;
    `answered` with success here, for code that waits for them; or `made`, to loopback addresses. `settings` are those
    of a broker's configuration (`check_after="1s"`); a topic has one queue unless `default_queues` says otherwise.

    Everything that looks at the broker first waits for what the clients of this process have on their way to it.
    """

    def __init__(self, *, calls: CallsAre = "kept", **settings: Any) -> None:
        self._calls, self._settings = calls, settings
        self._thread: BrokerThread | None = None
        self._clock = MovedClock()

    # Life

    def start(self) -> Self:
        """Start it, on a port that stays the same until `stop`."""
        if self._thread is None:
            self._thread = BrokerThread(broker_maker(self._calls, self._settings, self._clock))
        return self

    def stop(self) -> None:
        """End it, and its thread. What it had is gone."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """Forget everything: messages, transactions, groups, lost answers, the time. The URL stays."""
        thread = self._started()
        self._arrive()  # or it would come after the reset
        self._clock.ahead_ms = 0
        thread.reset()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return self._started().url

    def _started(self) -> BrokerThread:
        if self._thread is None:
            raise TallystickError("the broker was not started; use `with MemoryBroker() as broker`, or broker.start()")
        return self._thread

    def _see(self, look: Callable[[BrokerThread], Awaitable[T]]) -> T:
        self._arrive()
        thread = self._started()
        return thread.call(lambda: look(thread))

    def _arrive(self) -> None:
        thread = self._started()
        if not thread.is_down:
            arrive(thread.url)

    # Messages and calls

    def messages(self, topic: str) -> list[Message]:
        """The visible messages of a topic, in order (of each queue), as a consumer is given them."""
        return self._see(lambda thread: view.messages(thread.door, thread.url, topic))

    def assert_sent(
        self,
        topic: str,
        value: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        headers: Mapping[str, str] | None = None,
        tag: str | None = ANYTHING,
        times: int | None = None,
        within: float = 1.0,
    ) -> Message:
        """A message like this is visible; returns the first one.

        `value` is compared as it would be sent: bytes, text, or anything that JSON can say. `headers` are those that it
        must have, among others. With `times` there are exactly so many; otherwise one or more. What is not there yet is
        waited for, for `within` seconds: another thread or process may be sending it.
        """
        __tracebackhide__ = True  # of pytest's, here and below: the test's own line is what is shown
        if times is not None and times < 1:
            raise ValueError("times: at least 1; use assert_nothing_sent")
        expected = Expected(topic, value, key, headers, tag)
        deadline = time.monotonic() + within
        while True:
            found = [message for message in self.messages(topic) if expected.matches(message)]
            if (times is None and found) or len(found) == times:
                return found[0]
            if time.monotonic() > deadline or (times is not None and len(found) > times):
                wanted = "" if times is None else f" {times} times, but {len(found)} times"
                raise AssertionError(f"{expected} was not sent{wanted}.\n{self._situation()}")
            time.sleep(LOOK_SECONDS)

    def assert_nothing_sent(self, topic: str | None = None) -> None:
        """No message is visible, waits for its outcome or its time, or is on its way; on one topic, or on all of them,
        and then no call either."""
        __tracebackhide__ = True
        situation = self._situation()
        if topic is None:
            nothing = not (situation.messages or situation.calls or situation.waiting)
        else:
            topics = {message.topic for message in situation.messages} | {half.topic for half in situation.waiting}
            nothing = topic not in topics
        if not nothing:
            raise AssertionError(f"something was sent{f' on {topic!r}' if topic else ''}.\n{situation}")

    def calls(self) -> list[RecordedCall]:
        """The calls that committed transactions have asked for, in the order of their transactions."""
        return self._see(lambda thread: view.calls(thread.door))

    def assert_called(self, url: str, body: Any = ANYTHING, *, times: int | None = None) -> RecordedCall:
        """A committed transaction has asked for a call of this URL; returns the first one. (Whether it is made:
        `MemoryBroker(calls=...)`.)"""
        __tracebackhide__ = True
        found = expectations.calls_to(self.calls(), url, body)
        if not found or (times is not None and len(found) != times):
            wanted = "" if body is ANYTHING else f" with {body!r}"
            often = "" if times is None else f" {times} times, but {len(found)} times"
            raise AssertionError(f"{url} was not called{wanted}{often}.\n{self._situation()}")
        return found[0]

    def _situation(self) -> Situation:
        async def look(thread: BrokerThread) -> Situation:
            door, url = thread.door, thread.url
            return Situation(
                [one for topic in await view.topics(door) for one in await view.messages(door, url, topic)],
                await view.calls(door),
                await view.waiting(door, url),
                await view.transactions(door),
            )

        return self._see(look)

    # Transactions

    def transactions(self) -> list[TransactionView]:
        """All transactions, also those that have an outcome; `state` is prepared, parked, committed or rolled_back."""
        return self._see(lambda thread: view.transactions(thread.door))

    def outcome(self, gid: str) -> Outcome | None:
        """`committed`, `rolled_back`, or None: it has none yet, or was never prepared here."""
        found = self._transaction(gid)
        state = None if found is None else found.state
        return state if state in ("committed", "rolled_back") else None

    def _transaction(self, gid: str) -> TransactionView | None:
        async def look(thread: BrokerThread) -> TransactionView | None:
            try:
                return await thread.door.transaction(gid)
            except NotFound:
                return None

        return self._see(look)

    def assert_committed(self, gid: str) -> None:
        """The transaction has the outcome `committed`, so its messages are visible and its calls are to be made."""
        __tracebackhide__ = True
        self._assert_state(gid, "committed")

    def assert_rolled_back(self, gid: str) -> None:
        """The transaction has the outcome `rolled_back`: nothing of it will ever be visible."""
        __tracebackhide__ = True
        self._assert_state(gid, "rolled_back")

    def assert_pending(self, gid: str) -> None:
        """The transaction is prepared and has no outcome: the broker would ask for it."""
        __tracebackhide__ = True
        self._assert_state(gid, "prepared", "parked")

    def _assert_state(self, gid: str, *wanted: str) -> None:
        __tracebackhide__ = True
        found = self._transaction(gid)
        if found is None:
            raise AssertionError(f"transaction {gid} was never prepared here.\n{self._situation()}")
        if found.state not in wanted:
            raise AssertionError(f"not {wanted[0]}: {expectations.transaction(found)}\n{self._situation()}")

    # What else happens to a broker

    def check_back(self, timeout: float = 5.0) -> None:
        """Ask for the outcome of every pending transaction now, instead of in ten seconds, and wait until all have one.

        Clients of this process answer; they also send now what a dead process has left in their outbox. An
        `AssertionError` says which transactions nobody could decide, and why.
        """
        thread = self._started()
        if on_own_loop(thread.url):
            raise TallystickError("the client that has to answer runs on this event loop: await broker.acheck_back()")
        self._arrive()
        for runtime in list(runtimes_at(thread.url)):
            asyncio.run_coroutine_threadsafe(runtime.outbox.drive_now(), runtime.loop).result(timeout)
        deadline = time.monotonic() + timeout
        ask_at = 0.0
        while left := [one for one in self.transactions() if one.state in ("prepared", "parked")]:
            if time.monotonic() > deadline or all(one.state == "parked" for one in left):
                undecided = "\n".join(f"  {expectations.transaction(one)}" for one in left)
                raise AssertionError(f"nobody could tell the outcome of\n{undecided}")
            if time.monotonic() >= ask_at:  # not more often: each time counts, and too many of them park it
                thread.call(partial(_hurry, thread.door, [one.gid for one in left]))
                ask_at = time.monotonic() + ASK_AGAIN_SECONDS
            time.sleep(LOOK_SECONDS)

    async def acheck_back(self, timeout: float = 5.0) -> None:
        """`check_back` where an `AsyncClient` has to answer on this event loop."""
        await asyncio.to_thread(self.check_back, timeout)

    def advance(self, seconds: float) -> None:
        """Let time pass for the broker: delayed messages become visible, leases end, what was put off is due."""
        ahead_ms = milliseconds(seconds, "seconds")
        thread = self._started()
        self._clock.ahead_ms += ahead_ms
        thread.call(thread.deliver_delayed)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Within this `with` nobody reaches the broker; then it is back, with all that it had."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Refuse connections and end those that are there, until `resume`."""
        self._arrive()
        self._started().go_down()

    def resume(self) -> None:
        """Be there again after `pause`, with all that was there."""
        self._started().come_back()

    @contextmanager
    def lost_answer(self, to: Losable, times: int | None = 1) -> Iterator[LostAnswers]:
        """Within this `with` the broker carries the operation out and its answer is lost, the first `times` times, or
        always (None). It is an error if no such operation came."""
        if to not in get_args(Losable):
            raise ValueError(f"to: {to!r} is none of {', '.join(get_args(Losable))}")
        thread = self._started()
        losing = thread.losing = LostAnswers(to, times)
        try:
            yield losing
            self._arrive()
        finally:
            thread.losing = None
        if not losing.lost:
            raise AssertionError(f"no answer was lost: the broker was asked for no {to!r}")

    # Consumers

    def drain(self, client: Client, *, twice: bool = False) -> int:
        """Give the handlers of a client's subscriptions every message that is visible, and those that these send, until
        there is nothing left; how many were handled.

        Handlers run here, on this thread, one after the other, each as its subscription says: in a transaction with
        `exactly_once`, in batches, with its tags. What a handler raises is raised here, and its message is there again.
        With `twice` every message is delivered a second time, as after a lost acknowledgement.
        """
        self._started()
        return consumers.drain(client, self._arrive, twice)

    async def adrain(self, client: AsyncClient, *, twice: bool = False) -> int:
        """`drain` for an `AsyncClient`."""
        self._started()
        return await consumers.adrain(client, self._arrive, twice)


async def _hurry(door: BrokerDoor, gids: list[str]) -> None:
    for gid in gids:
        await door.hurry(gid)
