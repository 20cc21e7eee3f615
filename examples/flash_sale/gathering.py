"""A Redis client for many tasks: what they ask at the same time travels together, in one pipeline.

One request for each command would cost the shop more than everything else it does.
"""

import asyncio
from typing import Any

import redis.asyncio

MOST = 256  # commands in one pipeline

Waiting = tuple[tuple[Any, ...], dict[str, Any], asyncio.Future[Any]]


class GatheringRedis(redis.asyncio.Redis):
    """Send while nothing is on its way, gather while something is. What is read with `mget` becomes one command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._waiting: list[Waiting] = []
        self._sender: asyncio.Task[None] | None = None
        self._wanted: set[str] = set()
        self._read: asyncio.Future[dict[str, Any]] | None = None

    async def mget(self, *keys: str) -> list[Any]:
        if self._read is None:
            self._read = asyncio.ensure_future(self._read_together())
        self._wanted.update(keys)
        found = await asyncio.shield(self._read)
        return [found[key] for key in keys]

    async def _read_together(self) -> dict[str, Any]:
        """Everybody who is ready in this turn of the loop gets its keys into the same command."""
        await asyncio.sleep(0)
        keys, self._wanted, self._read = list(self._wanted), set(), None
        return dict(zip(keys, await self.execute_command("MGET", *keys), strict=True))

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((args, options, answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._send_together(some)
        finally:
            self._sender = None

    async def _send_together(self, some: list[Waiting]) -> None:
        try:
            async with self.pipeline(transaction=False) as together:
                for args, options, _ in some:
                    together.execute_command(*args, **options)
                found = await together.execute(raise_on_error=False)
        except Exception as error:  # each of those who wait is told
            found = [error] * len(some)
        for (_, _, answer), one in zip(some, found, strict=True):
            if answer.done():
                continue  # whoever asked has given up
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)
