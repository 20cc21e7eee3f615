"""Writing down what came of calls: one operation for all that came in during the last group commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tallystick.broker.writer import Writer
from tallystick.core.calls import CallResult
from tallystick.core.errors import TallystickError
from tallystick.store.protocol import FinishCalls

log = logging.getLogger("tallystick.broker.calls")

MOST_AT_ONCE = 4_096
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
_BYTES_EACH = 256


class Finisher:
    """Keeps each result until it is durable, whatever the writer says: a call that was answered must not be made
    again because its answer was lost here. How many there can be is bounded by how many calls are claimed."""

    def __init__(self, writer: Writer, durable: Callable[[list[CallResult]], None]) -> None:
        self._writer, self._durable = writer, durable
        self._results: list[CallResult] = []
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._at_once = MOST_AT_ONCE
        self._pause = FIRST_PAUSE
        self._task = asyncio.create_task(self._run(), name="call results")

    def add(self, result: CallResult) -> None:
        self._results.append(result)
        self._some.set()
        self._none.clear()

    async def _run(self) -> None:
        """Send while nothing is under way, gather while something is."""
        while True:
            await self._some.wait()
            if await self._write(self._results[: self._at_once]):
                self._pause = FIRST_PAUSE
                self._at_once = min(MOST_AT_ONCE, 2 * self._at_once)
            else:
                await asyncio.sleep(self._pause)
                self._pause = min(LAST_PAUSE, 2 * self._pause)

    async def _write(self, taken: list[CallResult]) -> bool:
        try:
            await self._writer.submit([FinishCalls(taken)], _BYTES_EACH * len(taken))
        except Exception as error:  # whatever it is, nothing may be lost here
            log.warning("results of %d calls have to wait: %s", len(taken), error)
            if not (isinstance(error, TallystickError) and error.retryable):
                # Something in it that the store cannot take. Each by itself, and the first one last, so that what is
                # wrong with one is no harm to the others.
                self._at_once = 1
                self._results = [*self._results[1:], self._results[0]]
            return False
        del self._results[: len(taken)]
        if not self._results:
            self._some.clear()
            self._none.set()
        self._durable(taken)
        return True

    async def close(self, seconds: float) -> None:
        """Write what there is, if that can be done in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            log.warning("%d results of calls could not be stored: those calls will be made again", len(self._results))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
