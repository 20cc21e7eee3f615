"""Answers to check-backs from Redis: for `tallystick.client.handlers`, or `Client(..., deciders={"redis": ...})`."""

from __future__ import annotations

from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster

from tallystick.barrier.redis.barrier import KEEP_SECONDS, AsyncRedisBarrier, RedisBarrier, checked_expire
from tallystick.core.ops import Outcome


class RedisDecider:
    """Decides gids over one client. `expire` and `prefix` are those of the barriers."""

    def __init__(self, client: Redis | RedisCluster, *, expire: int = KEEP_SECONDS, prefix: str = "") -> None:
        self._client = client
        self._expire = checked_expire(expire)
        self._prefix = prefix

    def decide(self, gid: str) -> Outcome:
        return RedisBarrier(self._client, gid, expire=self._expire, prefix=self._prefix).decide()


class AsyncRedisDecider:
    """The same over an asynchronous client, on the event loop that the client belongs to."""

    def __init__(self, client: AsyncRedis | AsyncRedisCluster, *, expire: int = KEEP_SECONDS, prefix: str = "") -> None:
        self._client = client
        self._expire = checked_expire(expire)
        self._prefix = prefix

    async def decide(self, gid: str) -> Outcome:
        return await AsyncRedisBarrier(self._client, gid, expire=self._expire, prefix=self._prefix).decide()
