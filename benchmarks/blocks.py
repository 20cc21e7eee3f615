"""`with ts.transaction(conn)` beside the same business transaction without messages, on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, count
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from benchmarks.broker_counts import batch_requests, wait_until_visible
from benchmarks.report import Figure
from benchmarks.rounds import Rounds, Turn, by_turns
from tallystick import Client
from tallystick.barrier import create_tables

if TYPE_CHECKING:
    from benchmarks.run import Bench

Mode = Literal["check-back", "outbox"]
Connect = Callable[[], Any]
Transact = Callable[[Any, int], None]

SECONDS, LEAST_SECONDS = 2.0, 0.05  # of one turn
ALONE = "business alone"
OPERATIONS: dict[Mode, int] = {"check-back": 2, "outbox": 1}  # of one block
THREADS = {1: 0.45, 8: 0.45, 32: 0.6}  # on PostgreSQL, and the share of the business alone that is to be left
ADDED_SECONDS = 1.0e-3
"""At most, to a block of one thread: two thirds of what it was when a thread handed its operations to another one."""


class Database(Struct, frozen=True):
    """Where the business is done; `mark` is how its driver writes a parameter."""

    name: str
    connect: Connect
    mark: str


def blocks(bench: Bench) -> None:
    """`with ts.transaction(conn)` as a share of the same business transaction without messages."""
    path = str(bench.directory / "bank.sqlite")
    with bench.broker("blocks") as broker:
        sqlite = Database("SQLite", lambda: _sqlite(path), "?")
        _compare(bench, broker.url, sqlite, 1, {"check-back": 0.25, "outbox": 0.4})
        if bench.postgresql is not None:
            import psycopg

            postgresql = Database("PostgreSQL", partial(psycopg.connect, bench.postgresql), "%s")
            for threads, share in THREADS.items():
                found = _compare(bench, broker.url, postgresql, threads, {"check-back": share, "outbox": None})
                _how_it_went(bench, f"PostgreSQL, {_so_many(threads)}", found, of_one_thread=threads == 1)


def _sqlite(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    return connection


def _open_accounts(database: Database, threads: int) -> None:
    """One for each thread."""
    with closing(database.connect()) as connection:
        create_tables(connection)
        cursor = connection.cursor()
        cursor.execute("drop table if exists account")
        cursor.execute("create table account (id int primary key, balance int)")
        for account in range(threads):
            cursor.execute(f"insert into account values ({account}, 0)")  # noqa: S608 - a number of our own
        connection.commit()


def _compare(bench: Bench, url: str, database: Database, threads: int, shares: Mapping[Mode, float | None]) -> Rounds:
    """The business alone, and with a message in each mode: the block that returns when the local commit is durable, and
    the one that waits until its message can be read."""
    _open_accounts(database, threads)
    with ExitStack() as opened:
        connections = [opened.enter_context(closing(database.connect())) for _ in range(threads)]
        business = _Business(connections, database.mark, max(LEAST_SECONDS, SECONDS * min(1.0, bench.scale)))
        client = opened.enter_context(Client(url, group="bench"))
        sender = _Sender(url, client, f"blocks-{database.name}-{threads}")
        ways = {ALONE: business.alone} | {
            _way(mode, wait): partial(business.with_messages, sender, mode, wait)
            for mode in shares
            for wait in (False, True)
        }
        business.warm_up(ways)
        found = by_turns(ways)
    place = f"{database.name}, {_so_many(threads)}"
    alone = found.median(lambda turns: turns[ALONE].rate)
    bench.report.add(Figure(f"{place}: {ALONE}", alone, "tx/s", ratio=alone * bench.fdatasync, ratio_of="fdatasyncs/s"))
    for mode, share in shares.items():
        for wait in (False, True):
            _add_share(bench, f"{place}: ", found, _way(mode, wait), None if wait else share)
    return found


def _way(mode: Mode, wait: bool) -> str:
    return f"block, {mode}{', wait=True' if wait else ''}"


def _so_many(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'}"


def _add_share(bench: Bench, place: str, found: Rounds, way: str, share: float | None) -> None:
    bench.report.add(
        Figure(
            place + way,
            found.median(lambda turns: turns[way].rate),
            "tx/s",
            ratio=found.median(lambda turns: turns[way].rate / turns[ALONE].rate),
            ratio_of=ALONE,
            ratio_target=share,
        )
    )


def _how_it_went(bench: Bench, place: str, found: Rounds, *, of_one_thread: bool) -> None:
    """What the share alone does not tell."""
    way = _way("check-back", False)
    took = found.median(lambda turns: turns[way].seconds)
    bench.report.add(Figure(f"{place}: {way}, median", took * 1e3, "ms"))
    if of_one_thread:
        added = found.median(lambda turns: turns[way].seconds - turns[ALONE].seconds)
        bench.report.add(Figure(f"{place}: {way}, time added", added * 1e3, "ms", ADDED_SECONDS * 1e3, True))
    spent = found.median(lambda turns: turns[way].processor - turns[ALONE].processor)
    bench.report.add(Figure(f"{place}: {way}, the service's processor time added", spent * 1e6, "us"))
    carried = found.median(lambda turns: OPERATIONS["check-back"] / turns[way].requests)
    bench.report.add(Figure(f"{place}: {way}, operations a request", carried, ""))


class _Sender:
    """A client, the topic of its messages, and how many there are."""

    def __init__(self, url: str, client: Client, topic: str) -> None:
        self._url, self._client, self._topic = url, client, topic
        self._sent = 0

    def transact(self, spend: str, mode: Mode, wait: bool) -> Transact:
        def transact(connection: Any, account: int) -> None:
            with self._client.transaction(connection, mode=mode, wait=wait) as tx:
                connection.cursor().execute(spend, (account,))
                tx.send(self._topic, b"x" * 1024, key=str(account))

        return transact

    def requests(self) -> int:
        return batch_requests(self._url)

    def see(self, more: int) -> None:
        """Stay until everything that was sent can be read: work that was put off is work."""
        self._sent += more
        wait_until_visible(self._url, self._topic, self._sent)


class _Business:
    """Threads that spend, each from an account of its own, for so many seconds a turn."""

    def __init__(self, connections: list[Any], mark: str, seconds: float) -> None:
        self._connections, self._seconds = connections, seconds
        self._spend = f"update account set balance = balance - 1 where id = {mark}"  # noqa: S608 - our own

    def warm_up(self, ways: Mapping[str, Callable[[], Turn]]) -> None:
        """What is done once (a client's connections, its look at the database) is not what is measured."""
        seconds, self._seconds = self._seconds, self._seconds / 10
        for way in ways.values():
            way()
        self._seconds = seconds

    def alone(self) -> Turn:
        def transact(connection: Any, account: int) -> None:
            connection.cursor().execute(self._spend, (account,))
            connection.commit()

        return self._turn(transact, None)

    def with_messages(self, sender: _Sender, mode: Mode, wait: bool) -> Turn:
        return self._turn(sender.transact(self._spend, mode, wait), sender)

    def _turn(self, transact: Transact, sender: _Sender | None) -> Turn:
        def work(connection: Any, account: int) -> list[float]:
            over = time.perf_counter() + self._seconds
            took = []
            while (began := time.perf_counter()) < over:
                transact(connection, account)
                took.append(time.perf_counter() - began)
            return took

        with ThreadPoolExecutor(len(self._connections)) as pool:
            requests = sender.requests() if sender else 0
            began, spent = time.perf_counter(), time.process_time()
            took = list(chain.from_iterable(pool.map(work, self._connections, count())))
            if sender:
                sender.see(len(took))
            seconds, spent = time.perf_counter() - began, time.process_time() - spent
            requests = sender.requests() - requests if sender else 0
        done = len(took)
        return Turn(done / seconds, median(took), spent / done, requests / done)
