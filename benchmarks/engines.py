"""The engines: prepare + commit in groups on the store alone, without a broker; then through brokers on each, and how
long it takes to take a store over.

Engines take turns, so that all see the same machine; the medians count. A server is added in `engine_servers.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engine_brokers import engine_brokers
from benchmarks.engine_servers import SERVERS
from benchmarks.engine_spread import engine_spread
from benchmarks.report import Figure
from benchmarks.rounds import Turn, by_turns
from benchmarks.takeover import takeover
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreOp
from tallystick.store.rocksdb import open_rocksdb
from tallystick.store.shared.opening import SharedStore, open_shared

if TYPE_CHECKING:
    from benchmarks.run import Bench

Opener = Callable[[Path], AbstractContextManager[KvStore]]

SECONDS, LEAST_SECONDS = 4.0, 0.2  # of one turn
GROUPS = (1, 64, 1_000)
MOST_TRIPS = 3
VALUE = b"x" * 1024


def engines(bench: Bench) -> None:
    """prepare + commit on each engine: on the store itself, through a broker, and through two; then a takeover."""
    _stores(bench)
    engine_brokers(bench)
    engine_spread(bench)
    takeover(bench)


def _stores(bench: Bench) -> None:
    seconds = max(LEAST_SECONDS, SECONDS * min(1.0, bench.scale))
    with ExitStack() as opened:
        stores = {name: opened.enter_context(engine(bench.directory / name)) for name, engine in ENGINES.items()}
        for name, store in stores.items():
            _measure(name, store, 64, seconds / 4)
        for group in GROUPS:
            _compare(bench, stores, group, seconds)


def _compare(bench: Bench, stores: Mapping[str, KvStore], group: int, seconds: float) -> None:
    found = by_turns({name: partial(_measure, name, store, group, seconds) for name, store in stores.items()})
    for name, store in stores.items():
        rate = found.median(lambda turns, name=name: turns[name].rate)
        what = f"{name}: prepare + commit in groups of {group:,}"
        bench.report.add(Figure(what, rate, "tx/s", ratio=rate * bench.fdatasync, ratio_of="fdatasyncs/s"))
        if isinstance(store, SharedStore):
            trips = found.median(lambda turns, name=name: turns[name].requests)
            bench.report.add(Figure(f"{name}: round trips a group of {group:,}", trips, "a unit", MOST_TRIPS, True))


_numbers = count()


def _measure(name: str, store: KvStore, group: int, seconds: float) -> Turn:
    """Groups of prepares, each followed by the group of their commits. The turn's `requests` are round trips a unit."""
    trips, units, began = _trips(store), 0, time.perf_counter()
    processor = time.process_time()
    while (took := time.perf_counter() - began) < seconds or not units:
        gids = [f"{name}-{next(_numbers):016d}" for _ in range(group)]
        _write(store, [Prepare(gid, "bench", [OutgoingMessage("bench", VALUE, key=gid)]) for gid in gids])
        _write(store, [Commit(gid) for gid in gids])
        units += 2
    done = units // 2 * group
    spent = time.process_time() - processor
    return Turn(done / took, took / done, spent / done, (_trips(store) - trips) / units)


def _write(store: KvStore, ops: list[StoreOp]) -> None:
    refused = [one for one in store.write(ops, time.time_ns() // 1_000_000).results if one is not None]
    if refused:
        raise RuntimeError(f"the store refused: {refused[0]}")


def _trips(store: KvStore) -> int:
    return store.server.trips if isinstance(store, SharedStore) else 0


# --- the engines -----------------------------------------------------------------------------------------------------


def _rocksdb(directory: Path) -> AbstractContextManager[KvStore]:
    return closing(open_rocksdb(directory))


@contextmanager
def _shared(server: Callable[[], AbstractContextManager[str]], directory: Path) -> Iterator[KvStore]:
    with server() as url, closing(open_shared(url, 1)) as store:
        yield store


ENGINES: dict[str, Opener] = {
    "RocksDB": _rocksdb,
    **{name: partial(_shared, server) for name, server in SERVERS.items()},
}
