"""Stores that are being claimed or released, beside the looks: such a question may wait for a lock, or for a disk, for
longer than a lease, and a broker that is not heard of for so long is taken for dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tallystick.store.shared.server import ServerAway

log = logging.getLogger("tallystick.broker.cluster")

AT_ONCE = 8  # connections to the engine


class Moves:
    """Made inside a running event loop. A store has one move at a time."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._refused: dict[int, ServerAway] = {}  # why the last move of a store failed

    def under_way(self) -> frozenset[int]:
        """The numbers of the stores of which a look may show what is no longer so."""
        return frozenset(self._tasks)

    def without_room(self, number: int) -> str:
        """Why the server had no room for the last move of a store; empty if that was not so."""
        refusal = self._refused.get(number)
        return str(refusal) if refusal is not None and refusal.full else ""

    def begin(self, number: int, move: Callable[[], Awaitable[None]]) -> None:
        """Nothing if the store is being moved. One that fails is left: the next look shows what became of it."""
        if number not in self._tasks:
            self._tasks[number] = asyncio.create_task(self._make(number, move), name=f"move store {number}")

    async def _make(self, number: int, move: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._slots:
                await move()
            self._refused.pop(number, None)
        except ServerAway as error:
            if number not in self._refused:  # once, and not with every look
                log.warning("store number %d can be neither claimed nor released just now: %s", number, error)
            self._refused[number] = error
        except Exception:
            log.exception("store number %d could be neither claimed nor released; it is tried again", number)
        finally:
            del self._tasks[number]
            self._on_end()

    async def close(self) -> None:
        """What the engine was asked for may be done all the same."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
