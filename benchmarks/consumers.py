"""A consumer with `exactly_once`, beside the bare loop that makes the same inserts with the same driver."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import loads
from benchmarks.report import Figure
from tallystick import AsyncClient, Client, Message

if TYPE_CHECKING:
    from benchmarks.run import Bench

INSERT = "insert into effect (id, value) values (%s, %s)"
TOPIC = "bench-effects"
BATCH = 100
ROUNDS = 3

Connect = Callable[[], Any]
_groups = itertools.count()


def consumers(bench: Bench) -> None:
    """Effects in PostgreSQL, once each, by one process; as a share of bare inserts with one commit a batch."""
    if bench.postgresql is None:
        return
    import psycopg

    dsn, count = bench.postgresql, bench.count(20_000, BATCH * 10)

    def connect() -> Any:
        return psycopg.connect(dsn)

    ways: dict[str, Callable[[str], float]] = {
        "bare inserts": lambda url: bare_inserts(connect, count, BATCH),
        "by inbox": lambda url: exactly_once(url, connect, count, by="inbox", batch=BATCH),
        "by offset": lambda url: exactly_once(url, connect, count, by="offset", batch=BATCH),
        "by inbox, one by one": lambda url: exactly_once(url, connect, count // 10, by="inbox", batch=1),
    }
    with bench.broker("consumers") as broker:
        _prepare(broker.url, connect, count)
        found = [{name: measure(broker.url) for name, measure in ways.items()} for _ in range(ROUNDS)]
    for name in ways:
        bench.report.add(
            Figure(
                f"PostgreSQL, batches of {BATCH}: {name}" if name != "by inbox, one by one" else f"PostgreSQL: {name}",
                median(one[name] for one in found),
                "messages/s",
                5_000 if name in ("by inbox", "by offset") else None,
                ratio=median(one[name] / one["bare inserts"] for one in found),
                ratio_of="bare inserts, one thread",
            )
        )


def bare_inserts(connect: Connect, count: int, batch: int) -> float:
    """Rows a second of a loop on one thread that does nothing else. (A consumer has four handlers by default.)"""
    connection = connect()
    try:
        began = time.perf_counter()
        for number in range(count):
            connection.execute(INSERT, (number, loads.VALUE))
            if (number + 1) % batch == 0:
                connection.commit()
        connection.commit()
        return count / (time.perf_counter() - began)
    finally:
        connection.close()


def exactly_once(url: str, connect: Connect, count: int, **options: Any) -> float:
    """Messages a second of a new group, from its start to the commit of the last of so many."""
    done = threading.Event()
    numbers = itertools.count(1)

    def handle(message: Message, connection: Any) -> None:
        connection.execute(INSERT, (message.offset, message.value))
        if next(numbers) == count:
            done.set()

    with Client(url, group=f"bench-{next(_groups)}") as client:
        client.subscribe(TOPIC, exactly_once=connect, **options)(handle)
        began = time.perf_counter()
        client.start()
        done.wait()
        while client.stats.handled < count:
            time.sleep(0.001)
        return count / (time.perf_counter() - began)


def _prepare(url: str, connect: Connect, count: int) -> None:
    from tallystick.barrier import create_tables

    connection = connect()
    create_tables(connection)
    connection.execute("create table effect (id bigint, value bytea)")
    connection.commit()
    connection.close()

    async def fill() -> None:
        async with AsyncClient(url, group="bench") as client:
            await client.create_topic(TOPIC, queues=4)
            await loads.fill(client, count + 500, TOPIC)

    asyncio.run(fill())
