"""Many at once on one stock: what was taken is what was promised, and a checker that sees when it is not."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from redis import Redis

from servers import RedisServer
from tallystick.barrier import AlreadyDecided
from tallystick.barrier.redis import NotEnough, RedisBarrier
from tallystick.barrier.redis.scripts import Call, Script, Value

STOCK = 20
BUYERS = 50
TRIES = 3
THREADS = 10


@dataclass
class History:
    """What every buyer was told, by gid, and what Redis held at the end."""

    told: dict[str, list[str]] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)
    taken: int = 0

    def having(self, word: str) -> set[str]:
        return {gid for gid, words in self.told.items() if word in words}


def contradictions(history: History) -> set[str]:
    """What cannot be true of a stock that only falls. A gid that has its unit must never be told that there is none:
    its service would withdraw the order, and the unit would be gone."""
    done = history.having("done")
    committed = {gid for gid, outcome in history.decided.items() if outcome == "committed"}
    found = {f"{gid} has its unit and was refused" for gid in done & history.having("refused")}
    found |= {f"{gid} has its unit and was rolled back" for gid in done & history.having("too late")}
    found |= {f"{gid} was done twice" for gid in done if history.told[gid].count("done") > 1}
    found |= {f"{gid}: mark and word differ" for gid in history.marked ^ done}
    found |= {f"{gid}: outcome and mark differ" for gid in committed ^ history.marked}
    if history.taken != len(done):
        found.add(f"{history.taken} units taken for {len(done)} gids")
    return found


class StockFirst(RedisBarrier):
    """dtm's order: the counter is looked at before the mark."""

    def _guarded(self, script: str, keys: Sequence[str], args: Sequence[Value]) -> Call:
        call = super()._guarded(script, keys, args)
        early = "if redis.call('GET', KEYS[3]) + ARGV[3] < 0 then return {'refused', KEYS[3]} end\n"
        return Call(Script.of(early + call.script.text), call.keys, call.args)


class MarkOnly(RedisBarrier):
    """Marks the gid in one call and counts in the next."""

    def adjust(self, key: str, amount: int) -> str:  # type: ignore[override]
        client = self._client
        if client.get(self.key):
            return "duplicate"
        if int(client.get(key) or 0) + amount < 0:
            raise NotEnough(key, amount)
        client.incrby(key, amount)
        client.set(self.key, "op")
        return "done"


Make = Callable[[Redis, str], RedisBarrier]


def told(make: Make, client: Redis, gid: str, stock: str) -> str:
    try:
        return make(client, gid).adjust(stock, -1)
    except NotEnough:
        return "refused"
    except AlreadyDecided:
        return "too late"


def sell(server: RedisServer, make: Make, gids: Iterable[str], jobs: Sequence[tuple[str, str]]) -> History:
    """Do the jobs (a gid, and `buy` or `check`) in many threads; then look at everything."""
    history = History(told={gid: [] for gid in gids})
    stock = f"stock-{uuid.uuid4().hex}"
    with contextlib.closing(server.connect()) as client:
        client.set(stock, STOCK)

        def work(job: tuple[str, str]) -> None:
            gid, what = job
            if what == "buy":
                history.told[gid].append(told(make, client, gid, stock))
            else:
                make(client, gid).decide()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, jobs))
        history.taken = STOCK - int(client.get(stock) or 0)
        history.marked = {gid for gid in history.told if client.get(f"{gid}-00-msg-01") == b"op"}
        history.decided = {gid: make(client, gid).decide() for gid in history.told}
    return history


def new_gids() -> list[str]:
    return [f"buyer-{uuid.uuid4().hex}" for _ in range(BUYERS)]


def shuffled(jobs: list[tuple[str, str]], seed: int) -> list[tuple[str, str]]:
    random.Random(seed).shuffle(jobs)
    return jobs


def test_fifty_buyers_with_retries_take_exactly_the_stock(redis: RedisServer) -> None:
    gids = new_gids()
    history = sell(redis, RedisBarrier, gids, shuffled([(gid, "buy") for gid in gids] * TRIES, 1))
    assert contradictions(history) == set()
    assert (history.taken, len(history.having("done"))) == (STOCK, STOCK)
    assert history.having("refused") == set(gids) - history.having("done")


@pytest.mark.parametrize("seed", range(3))
def test_buyers_and_check_backs_at_once_agree(redis: RedisServer, seed: int) -> None:
    gids = new_gids()
    jobs = [(gid, what) for gid in gids for what in ("buy", "buy", "check")]
    history = sell(redis, RedisBarrier, gids, shuffled(jobs, seed))
    assert contradictions(history) == set()
    assert history.having("done")
    assert history.having("too late")


def test_the_checker_catches_looking_at_the_stock_first(redis: RedisServer) -> None:
    gids = new_gids()
    history = sell(redis, StockFirst, gids, [(gid, "buy") for gid in gids] * TRIES)
    assert {reason.split(" ", 1)[1] for reason in contradictions(history)} == {"has its unit and was refused"}


def test_the_checker_catches_a_mark_apart_from_its_effect(redis: RedisServer) -> None:
    gids = new_gids()[:10]
    jobs = [(gid, "buy") for gid in gids for _ in range(20)]  # the same gid in all threads at once
    assert contradictions(sell(redis, MarkOnly, gids, jobs))
