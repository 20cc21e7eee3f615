"""The barrier in Redis, for services whose truth is there: a stock that is counted down by thousands a second.

Needs redis-py: `pip install 'tallystick[redis]'`. What Redis can lose, and what that means: docs/how-to/redis.md.
"""

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

try:
    import redis as _driver  # noqa: F401
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "tallystick.barrier.redis needs redis-py; install it with `pip install 'tallystick[redis]'`", name="redis"
    ) from _missing

if TYPE_CHECKING:
    from tallystick.barrier.redis.barrier import KEEP_SECONDS, LEAST_SECONDS, AsyncRedisBarrier, RedisBarrier
    from tallystick.barrier.redis.decider import AsyncRedisDecider, RedisDecider
    from tallystick.barrier.redis.errors import KeysApart, NotEnough, Refused, UnknownMark
    from tallystick.barrier.redis.scripts import Effect, Ran

__all__ = [
    "KEEP_SECONDS",
    "LEAST_SECONDS",
    "AsyncRedisBarrier",
    "AsyncRedisDecider",
    "Effect",
    "KeysApart",
    "NotEnough",
    "Ran",
    "RedisBarrier",
    "RedisDecider",
    "Refused",
    "UnknownMark",
]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "barrier": ("KEEP_SECONDS", "LEAST_SECONDS", "AsyncRedisBarrier", "RedisBarrier"),
            "decider": ("AsyncRedisDecider", "RedisDecider"),
            "errors": ("KeysApart", "NotEnough", "Refused", "UnknownMark"),
            "scripts": ("Effect", "Ran"),
        },
    )
