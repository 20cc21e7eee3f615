"""A snapshot that is held elsewhere while stores work: what a unit and a look cost at its end, against its start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.servers import Server, mariadb_server, postgres_server

from benchmarks.engine_servers import url_of
from benchmarks.report import Figure
from tallystick.core.ids import new_member_id
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Check, Commit, Prepare, Send
from tallystick.store.protocol import ClaimChecks, Receive, StoreOp
from tallystick.store.shared.opening import open_shared, registry_at
from tallystick.store.shared.registry import Member

if TYPE_CHECKING:
    from benchmarks.run import Bench

SECONDS, LEAST_SECONDS = 600.0, 4.0  # for which the snapshot is held
WINDOWS, LEAST_ROUNDS = 20, 32  # the first and the last one are compared
MOST = 1.2
VALUE = b"x" * 1024

SNAPSHOT_SERVERS = {
    "PostgreSQL": lambda: postgres_server(shared_buffers="256MB", max_wal_size="2GB"),
    "MariaDB": lambda: mariadb_server(innodb_buffer_pool_size="256M", innodb_log_file_size="1G"),
}

Times = dict[str, list[float]]

# Pages that the server has looked at so far.
_PAGES = {
    "postgresql": "select blks_hit + blks_read from pg_stat_database where datname = current_database()",
    "mysql": "select variable_value from information_schema.global_status"
    " where variable_name = 'Innodb_buffer_pool_read_requests'",
}


def snapshot(bench: Bench) -> None:
    """Cost of units and looks while a snapshot is held for ten minutes, at its end against its start."""
    seconds = max(LEAST_SECONDS, SECONDS * bench.scale)
    for name, server in SNAPSHOT_SERVERS.items():
        with server() as held, server() as free, ExitStack() as opened:
            loads = [_Load(one, opened) for one in (held, free)]
            _measure(bench, name, loads, seconds)


class _Window(NamedTuple):
    times: Times
    pages: float  # a round

    def cost(self, kind: str) -> float:
        return median(self.times[kind])


def _measure(bench: Bench, name: str, loads: list[_Load], seconds: float) -> None:
    """One server has a snapshot that is held, the other has none; they alternate, so that both see the same
    machine."""
    each = seconds / WINDOWS
    _window(loads, each)  # tables and plans that are not new
    with held_snapshot(loads[0].server):
        windows = [_window(loads, each) for _ in range(WINDOWS)]
    (held, free), (held_last, free_last) = windows[0], windows[-1]
    for kind in held.times:
        ratio = held_last.cost(kind) / held.cost(kind) / (free_last.cost(kind) / free.cost(kind))
        what = f"{name}: {kind}, at the end of a snapshot of {seconds:.0f} s / at its start"
        costs = "x without one"
        bench.report.add(Figure(what, ratio, costs, MOST, True))
    for what, one in (
        ("at the start of the snapshot", held),
        ("at its end", held_last),
        ("without one, at the start", free),
        ("without one, at the end", free_last),
    ):
        kinds = ", ".join(f"{kind} {one.cost(kind) * 1e3:.2f} ms" for kind in one.times)
        bench.report.add(Figure(f"{name}: pages a round {what} ({kinds})", one.pages, "pages"))


def _window(loads: list[_Load], seconds: float) -> list[_Window]:
    began = [load.pages() for load in loads]
    times: list[Times] = [{} for _ in loads]
    rounds, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until or rounds < LEAST_ROUNDS:
        rounds += 1
        for load, taken in zip(loads, times, strict=True):
            load.round(taken)
    spent = [load.pages() - before for load, before in zip(loads, began, strict=True)]
    return [_Window(taken, pages / rounds) for taken, pages in zip(times, spent, strict=True)]


@contextmanager
def held_snapshot(server: Server) -> Iterator[None]:
    """Of everything that the server has now, as a dump holds one."""
    with closing(server.connect()) as connection:
        cursor: Any = connection.cursor()
        if server.engine == "postgresql":
            cursor.execute("set transaction isolation level repeatable read")
        else:
            cursor.execute("start transaction with consistent snapshot")
        cursor.execute("select count(*) from tallystick_store_fence")
        cursor.fetchall()
        yield
        connection.rollback()


class _Load:
    """Rounds of one unit of each kind, and now and then a look at the cluster."""

    def __init__(self, server: Server, opened: ExitStack) -> None:
        self.server, url = server, url_of(server)
        self._registry = opened.enter_context(closing(registry_at(url)))
        self._registry.make(2)
        self._store = opened.enter_context(closing(open_shared(url, 1)))
        self._me = Member(new_member_id(), "bench", "http://127.0.0.1:1")
        self._numbers, self._beats = count(1), count(1)

    def pages(self) -> int:
        return int(self.server.execute(_PAGES[self.server.engine])[0][0])

    def round(self, times: Times) -> None:
        def timed(kind: str, work: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            done = work()
            times.setdefault(kind, []).append(time.perf_counter() - began)
            return done

        number = next(self._numbers)
        gid = f"t{number:012d}"
        body = [OutgoingMessage("bench", VALUE, key=gid)]
        timed("send", lambda: self._write(Send(body, f"s{gid}")))
        timed("prepare", lambda: self._write(Prepare(gid, "bench", body, Check(after_ms=60_000))))
        timed("commit", lambda: self._write(Commit(gid)))
        received = timed("receive", lambda: self._write(Receive("readers", "bench", 2, 60_000)))
        receipts = [one.receipt for one in received.deliveries]
        timed("ack", lambda: self._write(Ack("readers", receipts)))
        if number % 16 == 0:
            channels = [one.id for one in self._store.channels()]
            timed("claim of checks", lambda: self._write(ClaimChecks(channels, 16, 1_000)))
            timed("look", lambda: self._registry.look(msgspec.structs.replace(self._me, beat=next(self._beats))))

    def _write(self, op: StoreOp) -> Any:
        return self._store.write([op], time.time_ns() // 1_000_000).results[0]
