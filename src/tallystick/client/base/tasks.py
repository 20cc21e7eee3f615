"""Background work on the event loop: started, watched and ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tallystick.client.base.refusals import SLOWLY, Refusals, TurnedAway
from tallystick.core.backoff import Backoff
from tallystick.core.errors import Moved

log = logging.getLogger("tallystick.client")

RETRY = Backoff(first_ms=200, cap_ms=5_000)


class Tasks:
    """A set of tasks that is cancelled as a whole."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("background work ended unexpectedly", exc_info=failure)

    async def wait(self, timeout: float) -> None:
        """Give the tasks, and those that they start, time to end by themselves."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def cancel(self, timeout: float | None = None) -> None:
        """Cancel the tasks, and wait until they have ended: user code in them may take its time, or refuse to end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=timeout)
        if left:
            log.warning("%d cancelled tasks have not ended after %.1f s. They are abandoned.", len(left), timeout)

    def is_current(self) -> bool:
        """Whether the caller runs in one of the tasks."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # this thread has no event loop
            return False


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait until it has let go of what it holds."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def repeat(
    what: str, once: Callable[[], Awaitable[float]], refusals: Refusals | None = None, place: str = ""
) -> None:
    """Do something for ever. `once` returns the seconds until the next time; a failure is logged and retried; slowly,
    and logged once, if the broker turns us away. Who does the same at several places gives one `refusals` for all."""
    failures = 0
    refusals = refusals or Refusals(what)
    while True:
        try:
            with refusals.told(place):
                pause = await once()
            failures = 0
        except TurnedAway:
            failures += 1
            pause = SLOWLY.wait_ms(failures) / 1000
        except Exception as failure:
            # Whatever it is, giving up here would leave somebody waiting for ever.
            failures += 1
            pause = RETRY.wait_ms(failures) / 1000
            # A store changes hands whenever a broker is stopped. That is no trouble: its next owner is asked.
            level = logging.DEBUG if isinstance(failure, Moved) else logging.WARNING
            log.log(level, "%s failed, again in %.1f s: %s", what, pause, failure)
        await asyncio.sleep(pause)
