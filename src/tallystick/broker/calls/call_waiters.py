"""Waiting for a transaction's calls: until each has had its first try, or the time is up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable

from tallystick.broker.writer import Writer
from tallystick.core.calls import CallsView, first_pass_over
from tallystick.core.errors import Busy, NotFound

# What others do to a transaction (an operator stops it, another broker makes its calls) is seen by looking again.
LOOK_AGAIN_SECONDS = 1.0


class CallWaiters:
    def __init__(self, writer: Writer, most: int) -> None:
        self._writer, self._most = writer, most
        self._count = 0
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._closed = False

    def finished(self, gids: Iterable[str]) -> None:
        """Something about these has become durable."""
        if self._waiting:
            for gid in gids:
                for future in self._waiting.get(gid, ()):
                    if not future.done():
                        future.set_result(None)

    async def wait(self, gid: str, seconds: float) -> CallsView:
        if self._count >= self._most:
            raise Busy(f"{self._count} requests wait for calls, the limit is {self._most}")
        self._count += 1
        try:
            return await self._wait(gid, asyncio.get_running_loop().time() + seconds)
        finally:
            self._count -= 1

    async def _wait(self, gid: str, deadline: float) -> CallsView:
        loop = asyncio.get_running_loop()
        while True:
            # Before the look: what becomes durable after it must not be missed.
            future: asyncio.Future[None] = loop.create_future()
            self._waiting[gid].add(future)
            try:
                view = await self._writer.look(lambda store: store.calls(gid))
                if view is None:
                    raise NotFound(f"transaction {gid} is not known here, or has no calls", field="gid")
                left = deadline - loop.time()
                if _over(view) or left <= 0 or self._closed:
                    return view
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_AGAIN_SECONDS)):
                        await future
            finally:
                self._leave(gid, future)

    def _leave(self, gid: str, future: asyncio.Future[None]) -> None:
        self._waiting[gid].discard(future)
        if not self._waiting[gid]:
            del self._waiting[gid]

    def close(self) -> None:
        """Send everybody home with what there is."""
        self._closed = True
        self.finished(list(self._waiting))


def _over(view: CallsView) -> bool:
    return view.state in ("done", "parked", "stopped", "dropped") or first_pass_over(view)
