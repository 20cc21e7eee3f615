"""An event loop on a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tallystick.core.errors import TallystickError

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


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

        async def enter() -> T:
            return await function()

        future = asyncio.run_coroutine_threadsafe(enter(), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # without effect unless the waiting itself was interrupted
            raise

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
