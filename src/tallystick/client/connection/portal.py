"""The way onto an event loop for threads that wait, and a loop on a thread of its own for callers that have none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, TypeVar, cast

from tallystick.client.base import forks
from tallystick.client.connection.awaited import Awaited
from tallystick.client.connection.combiner import Underway
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.waiting import encode_op
from tallystick.core.errors import TallystickError
from tallystick.core.ops import ClientOp, OpResult

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

CANCEL_SECONDS = 1.0


def _under_gevent() -> bool:
    return threading.get_ident.__module__.startswith("gevent")


def is_closed() -> TallystickError:
    return TallystickError("the client is closed; make a new one")


def new_loop() -> asyncio.AbstractEventLoop:
    # Under gevent a thread is a greenlet: it must wait by what gevent has patched, or everybody waits with it.
    if _under_gevent():
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Waited(Awaited):
    """What a thread waits for, on a plain lock: futures would cost more."""

    async def run(self, function: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.set_result(await function())
        except asyncio.CancelledError:
            self.set_exception(CancelledError())
            raise
        except BaseException as failure:
            self.set_exception(failure)  # raised where it is waited for: on the loop, some of them would end it


class FromThreads:
    """The way onto an event loop that belongs to another thread.

    `ask` and `tell` are all that a block wants of a connection: hand in an operation, get its answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self.loop = loop
        self._thread = thread
        self._ended = False
        self._gate = threading.RLock()  # a signal handler may come through it while its thread does

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` on the loop and wait for what it returns."""
        self._refuse_own_thread()
        waited = _Waited()
        tasks: list[asyncio.Task[None]] = []
        with self._gate:
            if self._ended:
                raise is_closed()
            self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(waited.run(function))))
        try:
            waited.wait()
        except BaseException:  # the waiting was interrupted
            self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise
        try:
            return cast(T, waited.outcome())
        except CancelledError:
            raise is_closed() from None

    def ask(self, broker: BrokerPeer, op: ClientOp, timeout: float, *, retry: bool = True) -> OpResult | None:
        """Send an operation and wait for its answer. Whoever is interrupted meanwhile does not unsend it."""
        underway = self.underway(broker, op, timeout, retry)
        underway.begin()
        return underway.answer()

    def underway(self, broker: BrokerPeer, op: ClientOp, timeout: float, retry: bool = True) -> Underway:
        """An operation that is to be sent, and its answer awaited later."""
        self._refuse_own_thread()
        return broker.threads.ask(encode_op(op), timeout, retry)

    def tell(
        self,
        broker: BrokerPeer,
        op: ClientOp,
        timeout: float,
        *,
        stay: float,
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Send an operation in any case, and wait for its answer for `stay` seconds; `done` hears of it, on any thread.

        Never raises, not even when the client is closed.
        """
        broker.threads.tell(encode_op(op), timeout, stay=stay, done=done)

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise TallystickError(
                "a synchronous call from the client's own event loop would wait for itself; use AsyncClient there"
            )


class Portal(FromThreads):
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        # A daemon: a program that forgets to close its client still ends. What it queued is flushed at exit.
        thread = threading.Thread(target=self._run, name="tallystick-client", daemon=True)
        super().__init__(new_loop(), thread)
        thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(asyncio.sleep(0))  # operations that came last are told of the end
        finally:
            self.loop.close()

    def stop(self) -> None:
        """End the loop; whoever still waits is told that their call was cancelled."""
        if _gevents.still_used(self):
            return
        with self._gate:  # whoever is through is on the loop before what follows, and is told; nobody comes after
            self._ended = True
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:  # a handler may refuse to be cancelled
        await asyncio.wait(rest, timeout=CANCEL_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()


class _OneForAll:
    """Under gevent all threads of a process are one, which can run one event loop: its clients share that."""

    def __init__(self) -> None:
        self._portal: Portal | None = None
        self._users = 0
        self._lock = threading.Lock()
        forks.watch(self)

    def use(self) -> Portal:
        with self._lock:
            self._portal = self._portal or Portal()
            self._users += 1
            return self._portal

    def still_used(self, portal: Portal) -> bool:
        """One user less; whether others are left."""
        with self._lock:
            if portal is not self._portal:
                return False
            self._users -= 1
            if self._users == 0:
                self._portal = None
            return self._users > 0

    def after_fork(self) -> None:
        if self._portal is not None:
            forks.never_destroy(self._portal)
        self._portal, self._users, self._lock = None, 0, threading.Lock()


_gevents = _OneForAll()


def open_portal() -> Portal:
    """For a client, to be stopped by it."""
    return _gevents.use() if _under_gevent() else Portal()
