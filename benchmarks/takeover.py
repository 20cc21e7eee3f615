"""Taking over a store with much in it: from the claim to the first answer, on each shared engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

from benchmarks.engine_servers import SERVERS
from benchmarks.report import Figure
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Commit, Prepare, Send
from tallystick.store.protocol import StoreOp
from tallystick.store.shared.opening import SharedStore, open_shared

if TYPE_CHECKING:
    from benchmarks.run import Bench

PENDING, MESSAGES = 1_000_000, 2_000_000
SECONDS = 2.0
VALUE = b"x" * 100  # small: what counts here is how many there are
AT_ONCE = 4_000
_TOPICS = 20


def takeover(bench: Bench) -> None:
    """A store with a million pending transactions and two million messages: from the claim to the first answer."""
    pending, messages = bench.count(PENDING, 4_000), bench.count(MESSAGES, 4_000)
    for name, server in SERVERS.items():
        with server() as url:
            with closing(open_shared(url, 1)) as store:
                _fill(store, pending, messages)
            times = [bench.run(_first_answer(url)) for _ in range(3)]
        what = f"{name}: taken over with {pending:,} pending, {messages:,} messages"
        bench.report.add(Figure(what, max(times), "s", SECONDS, True))


async def _first_answer(url: str) -> float:
    """A transaction, prepared and committed by the new owner with all that it does beside."""
    config = load_config(flags={"store": "memory"}, environ={})
    began = time.perf_counter()
    broker = Broker(config, await asyncio.to_thread(open_shared, url, 1, config.store_settings()))
    try:
        gid = broker.door().new_gid()
        await broker.door().do(Prepare(gid, "bench", [OutgoingMessage("first", VALUE)]))
        await broker.door().do(Commit(gid))
        return time.perf_counter() - began
    finally:
        await broker.close()


def _fill(store: SharedStore, pending: int, messages: int) -> None:
    """By the store itself, in large units. Every tenth transaction that waits is overdue."""
    now = time.time_ns() // 1_000_000
    ops = iter(_ops(pending, messages))
    while some := list(islice(ops, AT_ONCE)):
        store.write(some, now)


def _ops(pending: int, messages: int) -> Iterator[StoreOp]:
    for number in range(pending):
        check = Check(after_ms=0 if number % 10 == 0 else 3_600_000)
        topic = f"topic-{number % _TOPICS}"
        yield Prepare(f"pending-{number:09d}", "bench", [OutgoingMessage(topic, VALUE, key=str(number))], check)
    for number in range(0, messages, 10):
        topic = f"topic-{number // 10 % _TOPICS}"
        yield Send([OutgoingMessage(topic, VALUE, key=str(number + each)) for each in range(10)])
