"""The flash sale of `examples/flash_sale` as fast as it goes: orders a second, accepted and rejected.

    python -m benchmarks.flash_sale 5

Redis (every change on the disk before its answer), the broker, the shop and the order service are processes of their
own; everything is on this machine, the users too. An order is one HTTP request; nothing is sampled or left out.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import redis
import uvloop
from examples.stage import settle
from examples.stage.redis_server import LocalRedis

from tallystick.local import LocalBroker, LocalService

EXAMPLE = Path(__file__).parents[1] / "examples/flash_sale"
USERS = 256  # at a time
ENOUGH = 10**9
SETTLE_SECONDS = 120.0


class User(asyncio.Protocol):
    """One user's connection, as cheap as it can be made: it shares the machine with what it measures."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    async def buy(self, activity: str, user: int) -> int:
        """The status of the answer."""
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(b"POST /buy/%b/u%d HTTP/1.1\r\nHost: shop\r\n\r\n" % (activity.encode(), user))
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._answer.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the shop closed the connection"))

    def close(self) -> None:
        self._transport.close()


async def rush(url: str, activity: str, wanted: int, seconds: float) -> int:
    """So many users at a time, each with a new name for every order; how many were answered with the wanted status."""
    names = itertools.count()
    address = urlsplit(url)
    over = time.perf_counter() + seconds
    answered = 0

    async def person() -> None:
        nonlocal answered
        _, user = await asyncio.get_running_loop().create_connection(User, address.hostname, address.port)
        while time.perf_counter() < over:
            status = await user.buy(activity, next(names))
            if status != wanted:
                raise RuntimeError(f"an order of {activity} was answered {status}, not {wanted}")
            answered += 1
        user.close()

    await asyncio.gather(*(person() for _ in range(USERS)))
    return answered


def measure(seconds: float) -> dict[str, float]:
    """Orders a second: `accepted`, as users are answered; `made`, until the last is in the order service's database;
    `rejected`; and `rejected after prepare`, the long way, which is what dtm's published figure measures."""
    with tempfile.TemporaryDirectory(prefix="tallystick-flash-sale-") as name, ExitStack() as running:
        directory = Path(name)
        store = running.enter_context(LocalRedis(directory / "redis"))
        broker = running.enter_context(LocalBroker(directory / "broker", min_free_bytes=0, log_level="warning"))
        database = directory / "orders.db"
        orders = running.enter_context(_service(directory, "orders", f"--database={database}"))
        options = f"--broker={broker.url}", f"--redis-port={store.port}", f"--orders={orders.url}/orders"
        shop = running.enter_context(_service(directory, "shop", *options))
        _fill(store, warm=ENOUGH, rush=ENOUGH, nothing=0)
        uvloop.run(rush(shop.url, "warm", 200, 0.5))
        settle(broker.url, SETTLE_SECONDS)
        found = _accepted(shop, broker, database, seconds)
        found["rejected"] = uvloop.run(rush(shop.url, "nothing", 409, seconds)) / seconds
        shop.kill()
        blind = running.enter_context(_service(directory, "shop", *options, "--without-look"))
        found["rejected after prepare"] = uvloop.run(rush(blind.url, "nothing", 409, seconds)) / seconds
        return found


def _accepted(shop: LocalService, broker: LocalBroker, database: Path, seconds: float) -> dict[str, float]:
    before = _rows(database)
    began = time.perf_counter()
    accepted = uvloop.run(rush(shop.url, "rush", 200, seconds))
    took = time.perf_counter() - began
    settle(broker.url, SETTLE_SECONDS)
    made = _rows(database) - before
    if made != accepted:
        raise RuntimeError(f"{accepted} orders were accepted and {made} made")
    return {"accepted": accepted / took, "made": made / (time.perf_counter() - began)}


def _service(directory: Path, role: str, *options: str) -> LocalService:
    command = [sys.executable, str(EXAMPLE / f"{role}.py"), "--port={port}", *options]
    return LocalService(role, command, directory / f"{role}.log")


def _fill(store: LocalRedis, **stock: int) -> None:
    with closing(redis.Redis(port=store.port)) as client:
        for activity, units in stock.items():
            client.set(f"{{a}}flash-sale-stock-{activity}", units)


def _rows(database: Path) -> int:
    with closing(sqlite3.connect(database)) as conn:
        return int(conn.execute("select count(*) from orders").fetchone()[0])


if __name__ == "__main__":
    for name, rate in measure(float(sys.argv[1]) if sys.argv[1:] else 5.0).items():
        print(f"{rate:10,.0f} orders/s {name}")
