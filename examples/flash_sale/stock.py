"""The stock in Redis: how much is left, who has taken a unit, and the one script that takes one.

All keys have the hash tag `{a}`, so that on a cluster the stock and the marks of its orders are on one node and one
script can change both.
"""

from gathering import GatheringRedis

from tallystick.barrier.redis import AsyncRedisBarrier, Effect
from tallystick.core.ops import Outcome


def stock_key(activity: str) -> str:
    return f"{{a}}flash-sale-stock-{activity}"


def gid_of(activity: str, user: str, attempt: int = 1) -> str:
    """The transaction of a user's order. It is made of who orders what: the same order again is the same gid."""
    first = f"{{a}}flash-sale-{activity}-{user}"
    return first if attempt == 1 else f"{first}:{attempt}"


def mark_key(gid: str) -> str:
    """Where the barrier keeps the mark of an order; dtm's layout."""
    return f"{gid}-00-msg-01"


def gid_of_mark(key: str) -> str:
    return key.removesuffix("-00-msg-01")


def user_of(gid: str, activity: str) -> str:
    return gid.removeprefix(f"{{a}}flash-sale-{activity}-").partition(":")[0]


class Stock:
    """What the shop asks of Redis."""

    def __init__(self, redis: GatheringRedis) -> None:
        self.redis = redis

    async def look(self, activity: str, gid: str) -> tuple[int, str | None]:
        """Units left, and the mark of this order: None, `op` (a unit was taken) or `rollback` (none ever will be)."""
        left, mark = await self.redis.mget(stock_key(activity), mark_key(gid))
        return int(left or 0), mark

    async def deduct(self, activity: str, gid: str) -> Effect:
        """Take one unit and leave the order's mark, in one script. `NotEnough` if there is none; a unit that this order
        took before, be it the last one, is a duplicate and no failure."""
        return await AsyncRedisBarrier(self.redis, gid).adjust(stock_key(activity), -1)

    async def decide(self, gid: str) -> Outcome:
        """Whether this order took a unit; if it has not, it never will: the script finds the mark that this leaves."""
        return await AsyncRedisBarrier(self.redis, gid).decide()
