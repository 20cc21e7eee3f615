"""The shop: takes orders as long as there is stock.

    python shop.py --port 8081 --broker http://127.0.0.1:7440 --redis-port 6379 --orders http://127.0.0.1:8082/orders

`POST /buy/<activity>/<user>` answers 200 (accepted) or 409 (sold out); anything else means: ask again. It may be killed
at any moment. What it has deducted becomes an order, whatever happens to it.
"""

import argparse
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import redis.exceptions
from answering import Scope, Service
from gathering import GatheringRedis
from sabotage import VARIANTS
from stage.traps import Traps
from stock import Stock, gid_of

import tallystick
from tallystick.barrier.redis import NotEnough
from tallystick.client import handlers
from tallystick.core.errors import AlreadyResolved, BrokerUnavailable

log = logging.getLogger("shop")

ATTEMPTS = 10
# Names without the characters that join them in a gid: nobody can order under the gid of somebody else.
BUY = re.compile("/buy/([A-Za-z0-9]{1,40})/([A-Za-z0-9]{1,40})")

Answer = Literal["accepted", "sold out", "again"]
STATUS: dict[Answer, int] = {"accepted": 200, "sold out": 409, "again": 503}


class Shop:
    """Takes orders. Everything that must not be lost is in the broker and in Redis; nothing is in here."""

    looks = True  # at the stock, before it does anything

    def __init__(
        self, ts: tallystick.AsyncClient, stock: Stock, orders_url: str, check: tallystick.CheckBack, traps: Traps
    ) -> None:
        self.ts, self.stock, self.orders_url, self.check, self.traps = ts, stock, orders_url, check, traps

    async def buy(self, activity: str, user: str) -> Answer:
        """One order for each user. The same order again finds what became of it."""
        for attempt in range(1, ATTEMPTS + 1):
            gid = gid_of(activity, user, attempt)
            left, mark = await self.stock.look(activity, gid)
            if mark == "rollback":
                continue  # this one was given up and can never take a unit: the user may try anew
            if mark is not None:
                return await self.confirm(gid)
            # Most of those who come are too late. They cost one question to Redis, and the broker never hears of them.
            return await self.take(activity, user, gid) if left > 0 or not self.looks else "sold out"
        return "sold out"

    async def take(self, activity: str, user: str, gid: str) -> Answer:
        order = tallystick.outgoing_call(self.orders_url, {"activity": activity, "user": user})
        try:
            await self.ts.prepare(gid, [], calls=[order], check=self.check)
        except AlreadyResolved:
            return "again"  # the broker has asked in the meantime; the mark says what it was told
        self.traps.spring("before-deduction")
        try:
            await self.stock.deduct(activity, gid)
        except NotEnough:
            return await self.give_up(gid)
        self.traps.spring("after-deduction")
        return await self.confirm(gid)

    async def confirm(self, gid: str) -> Answer:
        """The unit is taken, so the order is certain. If the broker cannot be told now, it will ask."""
        try:
            await self.ts.commit(gid)
        except BrokerUnavailable as error:
            log.warning("%s is committed by the check-back: %s", gid, error)
        self.traps.spring("after-commit")
        return "accepted"

    async def give_up(self, gid: str) -> Answer:
        """There was nothing left. The same order may be under way in another request, and may have found a unit that
        was put back: so this is decided in Redis, where only one of the two can be first, and not here."""
        if await self.stock.decide(gid) == "committed":
            return await self.confirm(gid)
        await self.ts.rollback(gid)
        return "sold out"


def service(given: argparse.Namespace) -> Service:
    store = GatheringRedis(port=given.redis_port, decode_responses=True)
    ts = tallystick.AsyncClient(given.broker, group="flash-sale", timeout=5)
    stock_class, shop_class = VARIANTS.get(given.sabotage, lambda *classes: classes)(Stock, Shop)
    asked = tallystick.CheckBack(url=f"http://127.0.0.1:{given.port}/check", after=given.check_after)
    shop = shop_class(ts, stock_class(store), given.orders, asked, Traps(given.traps))
    shop.looks = not given.without_look

    async def post(scope: Scope, body: bytes) -> tuple[int, bytes]:
        found = BUY.fullmatch(scope["path"])
        if found is None:
            return 404, b'{"error": "POST /buy/<activity>/<user>, with letters and digits"}'
        try:
            answer: Answer = await shop.buy(*found.groups())
        except (redis.exceptions.RedisError, tallystick.TallystickError) as error:
            log.warning("%s is not known yet: %s", found[0], error)
            answer = "again"
        return STATUS[answer], b'{"answer": "%b"}' % answer.encode()

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with ts:
            yield
        await store.aclose()

    # The whole check-back: what the broker asks when a transaction has been open for too long.
    return Service(post, life(), handlers.asgi(shop.stock))


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes orders as long as there is stock.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--broker", required=True, help="its URL")
    parser.add_argument("--redis-port", type=int, required=True)
    parser.add_argument("--orders", required=True, help="URL of the order service")
    parser.add_argument("--check-after", type=float, default=10.0, help="seconds before the broker asks")
    parser.add_argument("--traps", type=Path, help="where kills at an exact moment are set")
    parser.add_argument("--without-look", action="store_true", help="find out by trying that nothing is left")
    parser.add_argument("--sabotage", choices=sorted(VARIANTS), help="break it, to see that it is noticed")
    given = parser.parse_args()
    service(given).serve(given.port)


if __name__ == "__main__":
    main()
