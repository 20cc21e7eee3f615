"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Generic, TypeVar, cast

from tallystick.core.errors import TallystickError

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Call(Generic[T]):
    """One call that a thread waits for, on a plain lock: a block makes two of them, and futures would cost more."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._result: T | None = None
        self._failure: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._run())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._result = await self._function()
        except asyncio.CancelledError:
            self._failure = CancelledError()
            raise
        except BaseException as failure:
            self._failure = failure  # raised where it is waited for: on the loop, some of them would end it
        finally:
            self.done.release()

    def outcome(self) -> T:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return cast(T, self._result)


class Portal:
    """Runs coroutines of the asynchronous client for threads that wait."""

    def __init__(self) -> None:
        self.loop = new_loop()
        # A daemon: a program that forgets to close its client still ends. What it queued is flushed at exit.
        self._thread = threading.Thread(target=self._run, name="tallystick-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` on the loop and wait for what it returns."""
        if threading.current_thread() is self._thread:
            raise TallystickError(
                "a synchronous call from the client's own event loop would wait for itself; use AsyncClient there"
            )

        call = _Call(function)
        self.loop.call_soon_threadsafe(call.start, self.loop)
        try:
            call.done.acquire()
        except BaseException:  # the waiting was interrupted
            self.loop.call_soon_threadsafe(call.cancel)
            raise
        return call.outcome()

    def stop(self) -> None:
        """End the loop; whoever still waits is told that their call was cancelled."""
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
