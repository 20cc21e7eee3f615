"""One face for the sync and the async barrier on Redis, and keys that no other test uses."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from servers import RedisServer
from tallystick.barrier.redis import AsyncRedisBarrier, RedisBarrier

T = TypeVar("T")


class Shop:
    """A counter in Redis, and barriers over a client of one kind."""

    def __init__(self, redis: Redis, barrier: Callable[..., Any], wait: Callable[[Any], Any]) -> None:
        self.redis = redis
        self.stock = f"stock-{uuid.uuid4().hex}"
        self._barrier = barrier
        self._wait = wait

    def barrier(self, gid: str, *names: str, **options: Any) -> Any:
        return self._barrier(gid, *names, **options)

    def adjust(self, gid: str, amount: int, *names: str, key: str | None = None, **options: Any) -> str:
        return str(self._wait(self.barrier(gid, *names, **options).adjust(key or self.stock, amount)))

    def adjust_all(self, gid: str, amounts: dict[str, int]) -> str:
        return str(self._wait(self.barrier(gid).adjust_all(amounts)))

    def run(self, gid: str, script: str, *more: Any) -> Any:
        return self._wait(self.barrier(gid).run(script, *more))

    def decide(self, gid: str, **options: Any) -> str:
        return str(self._wait(self.barrier(gid, **options).decide()))

    @property
    def left(self) -> int:
        return int(self.redis.get(self.stock) or 0)

    @left.setter
    def left(self, units: int) -> None:
        self.redis.set(self.stock, units)

    def mark(self, gid: str, *names: str) -> bytes | None:
        """What the barrier's key holds."""
        return self.redis.get("-".join([gid, *(names or ("00", "msg", "01"))]))


@contextlib.contextmanager
def sync_shop(server: RedisServer, **options: Any) -> Iterator[Shop]:
    with contextlib.closing(server.connect()) as look, contextlib.closing(server.connect(**options)) as client:
        yield Shop(look, lambda *names, **more: RedisBarrier(client, *names, **more), lambda value: value)


@contextlib.contextmanager
def async_shop(server: RedisServer, **options: Any) -> Iterator[Shop]:
    with contextlib.closing(server.connect()) as look, asyncio.Runner() as runner:
        client = AsyncRedis(host=server.host, port=server.port, **options)

        async def value_of(awaitable: Awaitable[T]) -> T:
            return await awaitable

        yield Shop(
            look,
            lambda *names, **more: AsyncRedisBarrier(client, *names, **more),
            lambda awaitable: runner.run(value_of(awaitable)),
        )
        runner.run(client.aclose())


SHOPS: dict[str, Callable[[RedisServer], contextlib.AbstractContextManager[Shop]]] = {
    "sync": sync_shop,
    "async": async_shop,
    "sync, text": lambda server: sync_shop(server, decode_responses=True),
    "async, text": lambda server: async_shop(server, decode_responses=True),
}
