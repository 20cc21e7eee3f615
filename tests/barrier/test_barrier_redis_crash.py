"""Redis killed with -9 under load, with `appendfsync always`: the stock and the barrier agree when it is back."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from dataclasses import dataclass, field

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from cutting_proxy import Cut, cutting_proxy
from servers import RedisServer, redis_server
from tallystick.barrier import AlreadyDecided
from tallystick.barrier.redis import RedisBarrier

pytestmark = pytest.mark.fault

STOCK = 1_000_000
THREADS = 4
ROUNDS = 3
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


def once(server: RedisServer, port: int | None = None) -> Redis:
    """A client that tells of a lost connection instead of trying again."""
    return Redis(server.host, port or server.port, retry=Retry(NoBackoff(), 0))


@dataclass
class Load:
    """Units taken one by one, each under a gid of its own, until the server is gone."""

    done: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def take_until_gone(self, server: RedisServer) -> None:
        with contextlib.closing(once(server)) as client:
            for number in itertools.count():
                gid = f"g{number}-{uuid.uuid4().hex}"
                try:
                    assert RedisBarrier(client, gid).adjust("stock", -1) == "done"
                except RedisConnectionError:
                    self.unknown.add(gid)
                    return
                self.done.add(gid)


def killed_under_load(server: RedisServer, load: Load, enough: int) -> None:
    before = len(load.done)
    threads = [threading.Thread(target=load.take_until_gone, args=(server,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while len(load.done) < before + enough:
        time.sleep(0.002)
    server.kill()
    for thread in threads:
        thread.join()
    server.start()


def disagreements(client: Redis, load: Load) -> set[str]:
    """Units and marks that do not belong together, and promises that Redis has forgotten."""
    marked = {gid for gid in load.done | load.unknown if client.get(f"{gid}-00-msg-01") == b"op"}
    found = {f"{gid} was promised and is forgotten" for gid in load.done - marked}
    taken = STOCK - int(client.get("stock") or STOCK)
    if taken != len(marked):
        found.add(f"{taken} units taken, {len(marked)} marked")
    return found


def test_after_kill_9_the_stock_and_the_barrier_agree() -> None:
    load = Load()
    with redis_server(**ALWAYS) as server, contextlib.closing(server.connect()) as client:
        client.set("stock", STOCK)
        for _ in range(ROUNDS):
            killed_under_load(server, load, 100)
            assert disagreements(client, load) == set()
        assert len(load.unknown) == ROUNDS * THREADS
        told = {gid: RedisBarrier(client, gid).decide() for gid in load.done | load.unknown}
        committed = {gid for gid, outcome in told.items() if outcome == "committed"}
        assert load.done <= committed
        assert STOCK - int(client.get("stock") or 0) == len(committed)
        for gid in load.unknown:  # whoever comes late can change nothing any more
            with contextlib.suppress(AlreadyDecided):
                assert RedisBarrier(client, gid).adjust("stock", -1) == "duplicate"
        assert STOCK - int(client.get("stock") or 0) == len(committed)


def test_the_checker_sees_what_a_redis_without_a_log_forgets() -> None:
    load = Load()
    with redis_server() as server, contextlib.closing(server.connect()) as client:
        client.set("stock", STOCK)
        killed_under_load(server, load, 20)
        assert disagreements(client, load) >= {f"{gid} was promised and is forgotten" for gid in load.done}


@pytest.mark.parametrize(("cut", "outcome"), [("before", "rolled_back"), ("after", "committed")])
def test_a_lost_answer_is_an_error_and_the_check_back_knows(
    redis: RedisServer, gid: str, cut: Cut, outcome: str
) -> None:
    stock = f"stock-{gid}"
    with contextlib.closing(redis.connect()) as look, cutting_proxy(redis.port) as proxy:
        look.set(stock, 2)
        # Redis knows the script from now on, so that what is cut is the effect and not the question for the script.
        assert RedisBarrier(look, f"{gid}-before").adjust(stock, -1) == "done"
        with contextlib.closing(once(redis, proxy.port)) as client:
            client.ping()
            proxy.arm(cut)
            with pytest.raises(RedisConnectionError):
                RedisBarrier(client, gid).adjust(stock, -1)
        assert RedisBarrier(look, gid).decide() == outcome
        assert look.get(stock) == (b"0" if outcome == "committed" else b"1")
