"""The load: processes of customers, each on a connection that stays open, ordering again as soon as it is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from types import TracebackType
from typing import Self

import uvloop
from msgspec import Struct

from benchmarks import plain_http
from benchmarks.web.shop import CONNECTIONS, PRODUCTS

PROCESSES = 2


class Rush(Struct, frozen=True):
    """What the customers of all processes came to."""

    orders: set[str]  # that were answered with success
    rate: float  # a second
    seconds: float  # of one: the median


class Customers:
    """`with Customers() as customers: customers.rush(url, "/with", "first", seconds)`."""

    def __enter__(self) -> Self:
        # Not forked: a copy of the process that measures would share its threads' locks and its sockets.
        self._pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def rush(self, url: str, path: str, name: str, seconds: float) -> Rush:
        """Everybody orders for so long. Ids of orders begin with `name`, which is used once."""
        parts = [self._pool.submit(_order, url, path, f"{name}-{number}", seconds) for number in range(PROCESSES)]
        orders: set[str] = set()
        times: list[float] = []
        rate = 0.0
        for number, part in enumerate(parts):
            answered, took = part.result()
            orders.update(_order_id(f"{name}-{number}", place) for place in range(len(answered)))
            times += answered
            rate += len(answered) / took
        return Rush(orders, rate, median(times))


def _order_id(name: str, place: int) -> str:
    return f"{name}-{place}"


def _order(url: str, path: str, name: str, seconds: float) -> tuple[list[float], float]:
    """In a process of its own: how long each order took, and all of them. Anything but success is an error."""
    return uvloop.run(_customers(url, path.encode(), name, seconds))


async def _customers(url: str, path: bytes, name: str, seconds: float) -> tuple[list[float], float]:
    connections = [await plain_http.connect(url) for _ in range(CONNECTIONS // PROCESSES)]
    places = itertools.count()
    times: list[float] = []
    began = time.perf_counter()

    async def customer(connection: plain_http.Connection) -> None:
        while (asked := time.perf_counter()) < began + seconds:
            place = next(places)
            order = b'{"id":"%b","product":%d,"quantity":2}'
            await connection.post(path, order % (_order_id(name, place).encode(), place % PRODUCTS))
            times.append(time.perf_counter() - asked)

    await asyncio.gather(*map(customer, connections))
    took = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return times, took
