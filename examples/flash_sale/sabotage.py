"""Shops that are wrong in one place each, to show that the proof notices.

* `stock-first`: the script looks at the stock before it looks for the order's mark. Whoever took the last unit and asks
  again is told that there is nothing left, and the order is rolled back although its unit is gone. (dtm's script does
  this.)
* `no-mark`: the unit is taken without a mark. A check-back cannot know of it, and rolls the order back.
"""

from collections.abc import Callable
from typing import Any

from stock import gid_of, mark_key, stock_key

from tallystick.barrier.redis import NotEnough

STOCK_FIRST = """
local left = tonumber(redis.call('GET', KEYS[1]) or '0')
if left < 1 then return 'not enough' end
if redis.call('EXISTS', KEYS[2]) == 1 then return 'duplicate' end
redis.call('SET', KEYS[2], 'op')
redis.call('DECR', KEYS[1])
return 'done'
"""

Classes = tuple[type, type]


def asking(right_shop: type) -> type:
    """A shop that asks the broker what became of an order, because there is no mark that it can trust."""

    class Shop(right_shop):  # type: ignore[misc]
        async def buy(self, activity: str, user: str) -> str:
            gid = gid_of(activity, user)
            if outcome := await self.ts.outcome(gid):
                return "accepted" if outcome == "committed" else "sold out"
            return await self.take(activity, user, gid)

        async def give_up(self, gid: str) -> str:
            await self.ts.rollback(gid)
            return "sold out"

    return Shop


def stock_first(right_stock: type, right_shop: type) -> Classes:
    class Stock(right_stock):  # type: ignore[misc]
        async def deduct(self, activity: str, gid: str) -> str:
            found: Any = await self.redis.eval(STOCK_FIRST, 2, stock_key(activity), mark_key(gid))
            if found == "not enough":
                raise NotEnough(stock_key(activity), -1)
            return str(found)

    return Stock, asking(right_shop)


def no_mark(right_stock: type, right_shop: type) -> Classes:
    class Stock(right_stock):  # type: ignore[misc]
        async def deduct(self, activity: str, gid: str) -> str:
            if await self.redis.decr(stock_key(activity)) < 0:
                await self.redis.incr(stock_key(activity))
                raise NotEnough(stock_key(activity), -1)
            return "done"

    return Stock, asking(right_shop)


VARIANTS: dict[str | None, Callable[[type, type], Classes]] = {"stock-first": stock_first, "no-mark": no_mark}
