"""A store on a Redis that dies, is cut off or has a torn log."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from shared_stream import NOW, Stream, counted_cuts, stored

from cutting_proxy import Cut, cutting_proxy
from servers import RedisServer as Redis
from servers import redis_server
from shared_stores import opener
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Prepare
from tallystick.store.kv.engine import AREAS, Changes
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import open_shared
from tallystick.store.shared.redis import RedisServer

pytestmark = pytest.mark.fault

STORE = 1


@pytest.fixture
def durable() -> Iterator[Redis]:
    with redis_server(appendonly="yes", appendfsync="always") as server:
        yield server


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_server_is_killed_and_started_again_under_a_stream_of_units(durable: Redis) -> None:
    with ThreadPoolExecutor(1) as killer, closing(open_shared(durable.url, STORE)) as store:
        stream, cuts = Stream(store, between=lambda: time.sleep(0.01)), counted_cuts(store)
        written = 0
        for kill in range(8):
            done = killer.submit(_kill_and_start, durable, random.Random(kill).uniform(0.0, 0.2))
            while not done.done() or written % 10:
                stream.unit(f"u{written}")
                written += 1
            done.result()
        assert cuts, "no unit met the server's end"
        stream.check(store)
        with closing(open_shared(durable.url, STORE)) as again:
            stream.check(again)
            assert set(stored(again)) == stream.told == stream.asked


def _kill_and_start(server: Redis, after: float) -> None:
    time.sleep(after)
    server.kill()
    server.start()


@pytest.mark.parametrize("cuts", [2, pytest.param(40, marks=pytest.mark.full)])
def test_of_a_torn_log_a_unit_is_there_as_a_whole_or_not_at_all(durable: Redis, cuts: int) -> None:
    (log,) = (durable.directory / "appendonlydir").glob("*.incr.aof")
    with closing(RedisServer(durable.url, STORE)) as store:
        store.claim("broker-1")
        assert store.apply(1, 0, _everywhere("first"))
        before = log.stat().st_size
        assert store.apply(1, 1, _everywhere("second"))
        durable.kill()
        whole = log.read_bytes()
        for cut in range(cuts):
            kept = before + 1 + cut * (len(whole) - before - 1) // cuts
            log.write_bytes(whole[:kept])
            durable.start()
            store.cut()
            assert _held(store) == (1, {area: {b"first"} for area in AREAS}), kept
            durable.kill()
        log.write_bytes(whole)
        durable.start()
        store.cut()
        assert _held(store) == (2, {area: {b"first", b"second"} for area in AREAS})


def test_an_owner_that_knew_more_than_the_server_is_refused_and_reads_anew(durable: Redis) -> None:
    """As after a failover to a replica that had not received the last unit."""
    (log,) = (durable.directory / "appendonlydir").glob("*.incr.aof")
    with closing(open_shared(durable.url, STORE)) as store:
        stream = Stream(store)
        stream.unit("kept")
        before = log.stat().st_size
        lost = Stream(store)
        lost.unit("lost")
        durable.kill()
        log.write_bytes(log.read_bytes()[:before])
        durable.start()
        with pytest.raises(StorageFailed, match="not where its owner left it"):
            store.write([Prepare("next", "shop", [OutgoingMessage("orders", b"next")])], NOW)
        assert store.recover() is not None
        stream.check(store)
        lost.unit("lost")
        assert set(stored(store)) == stream.asked | lost.asked


def _everywhere(name: str) -> Changes:
    changes = Changes()
    for area in AREAS:
        changes.keys[area][name.encode()] = b"x" * 100
    return changes


def _held(store: RedisServer) -> tuple[int, dict[str, set[bytes]]]:
    fence = store.fence()
    assert fence is not None
    return fence.unit, {area: {key for key, _ in store.page(area, b"", b"~", 100, 10_000, False)} for area in AREAS}


# --- the connection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.full)])
def test_connections_cut_before_and_after_the_script_cost_nothing(redis: Redis, rounds: int) -> None:
    chance = random.Random(rounds)

    def choose(data: bytes) -> Cut:
        cuts: tuple[Cut, ...] = ("before", "after", "no", "no", "no")
        return chance.choice(cuts) if b"EVALSHA" in data else "no"

    with cutting_proxy(redis.port) as proxy:
        with closing(opener(f"redis://127.0.0.1:{proxy.port}/0")(StoreSettings())) as store:
            stream = Stream(store)
            proxy._choose = choose
            for number in range(rounds):
                stream.unit(f"u{number}")
            proxy.calm()
            stream.check(store)
            assert set(stored(store)) == stream.asked
        assert proxy.cut > rounds // 3
