"""The flash sale: orders equal deductions whoever is killed, and what is broken on purpose makes the proof fail."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from example_support import Part, broken, modules_of, run
from stage.traps import Traps

from brokers import BrokerProcess
from servers import RedisServer
from tallystick import AsyncClient, CheckBack

RUN = "examples/flash_sale/run.py"
long = [pytest.mark.full, pytest.mark.fault]


class TestWhole:
    pytestmark = long

    def test_orders_are_deductions_whoever_is_killed(self, tmp_path: Path) -> None:
        code, result = run(RUN, tmp_path, "--users=240", "--stock=160", "--kills=8", "--seed=5")
        assert (code, broken(result)) == (0, []), result["said"]
        # Every kind of kill once, and one more with the last unit in hand.
        assert result["kills"] == {"shop": 5, "orders": 2, "broker": 1, "redis": 1}, result["said"]
        assert result["orders"] == {"shoes": 160, "last": 1}
        assert list(tmp_path.glob("tallystick-flash-sale-*")) == []  # it cleans up after itself

    @pytest.mark.parametrize(
        ("sabotage", "claim"),
        [
            ("stock-first", "every unit that was deducted has an order"),
            ("no-mark", "the stock went down by the deductions"),
            ("no-branch-barrier", "no order was made twice"),
        ],
    )
    def test_what_is_broken_on_purpose_is_noticed(self, sabotage: str, claim: str, tmp_path: Path) -> None:
        options = f"--sabotage={sabotage}", "--users=120", "--stock=80", "--kills=8", "--seed=5", "--check-after=8"
        code, result = run(RUN, tmp_path, *options)
        assert code == 1
        assert claim in broken(result), result["said"]


# --- the parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def part() -> Iterator[Part]:
    with modules_of("flash_sale") as load:
        yield load


def right(part: Part) -> Any:
    """Two units, three users, all as it should be."""
    gids = [part("stock").gid_of("shoes", "ann"), part("stock").gid_of("shoes", "bob", 2)]
    sale = part("proof").Sale("shoes", 2, 0, set(gids), gids, {"ann", "bob"}, {"eve"})
    return part("proof").Evidence([sale])


WRONG = [
    ("a deduction without an order", {"orders": lambda right: right[1:]}, {0, 5}),
    ("an order without a deduction", {"deductions": lambda right: set(list(right)[1:])}, {1, 4}),
    ("an order made twice", {"orders": lambda right: right + right[:1]}, {2, 3}),
    ("a user with two orders", {"orders": lambda right: [*right, right[0] + ":2"]}, {1, 3}),
    ("a unit that went nowhere", {"left": lambda right: 1}, {4, 7}),
    ("a user who was not told", {"accepted": lambda right: {"ann"}}, {5}),
    ("a user who was told the contrary", {"sold_out": lambda right: {"ann", "eve"}}, {6}),
    ("nobody sent away", {"sold_out": lambda right: set()}, {10}),
]


def failing(part: Part, evidence: Any) -> set[int]:
    return {place for place, line in enumerate(part("proof").judge(evidence)) if not line.holds}


def test_the_proof_accepts_what_is_right(part: Part) -> None:
    assert failing(part, right(part)) == set()


@pytest.mark.parametrize(("change", "expected"), [pytest.param(*rest, id=name) for name, *rest in WRONG])
def test_the_proof_notices_each_kind_of_damage(change: dict[str, Any], expected: set[int], part: Part) -> None:
    (sale,) = right(part).sales
    changed = {name: make(getattr(sale, name)) for name, make in change.items()}
    assert failing(part, part("proof").Evidence([sale._replace(**changed)])) == expected


def test_work_that_is_left_is_noticed(part: Part) -> None:
    left = part("proof").OpenWork(1, 2)
    assert failing(part, right(part)._replace(left=left)) == {8, 9}


def test_the_plan_is_the_same_for_a_seed_and_spares_nobody(part: Part) -> None:
    plan = part("kills").plan
    assert plan(10, 1) == plan(10, 1) != plan(10, 2)
    kinds = Counter((kill.role, kill.moment) for kill in plan(16, 1))
    assert set(kinds.values()) == {2}
    assert len(kinds) == 8


async def test_what_is_asked_at_the_same_time_travels_together(part: Part, redis: RedisServer) -> None:
    client = part("gathering").GatheringRedis(port=redis.port, decode_responses=True)
    try:
        with closing(redis.connect()) as looking:
            before = looking.info("stats")["total_reads_processed"]
            found = await asyncio.gather(*(client.incr("gathered") for _ in range(1_000)))
            assert sorted(found) == list(range(1, 1_001))
            assert looking.info("stats")["total_reads_processed"] - before < 500
    finally:
        await client.aclose()


async def test_one_mistake_among_what_travels_together_is_one_callers_own(part: Part, redis: RedisServer) -> None:
    client = part("gathering").GatheringRedis(port=redis.port, decode_responses=True)
    try:
        await client.set("a-list", "no number")
        wrong, good = await asyncio.gather(client.incr("a-list"), client.incr("alone"), return_exceptions=True)
        assert "not an integer" in str(wrong)
        assert good == 1
    finally:
        await client.aclose()


@pytest.fixture
async def shop(part: Part, redis: RedisServer, broker: BrokerProcess) -> AsyncIterator[Any]:
    """A shop in this process, whose check-backs nobody answers: what it does, it does by itself."""
    client = part("gathering").GatheringRedis(port=redis.port, decode_responses=True)
    async with AsyncClient(broker.url, group="shop") as ts:
        check = CheckBack(url="http://127.0.0.1:9/check", after=600)
        yield part("shop").Shop(ts, part("stock").Stock(client), "http://127.0.0.1:9/orders", check, Traps(None))
    await client.aclose()


async def test_the_last_units_retry_is_a_duplicate(shop: Any, part: Part) -> None:
    await shop.stock.redis.set(part("stock").stock_key("last"), 1)
    assert await shop.buy("last", "ann") == "accepted"
    assert await shop.buy("last", "bob") == "sold out"
    assert await shop.buy("last", "ann") == "accepted"
    shop.looks = False  # the same if it is the script that finds out
    gid = part("stock").gid_of("last", "ann")
    assert await shop.stock.deduct("last", gid) == "duplicate"
    assert await shop.ts.outcome(gid) == "committed"


async def test_an_order_that_was_given_up_leaves_the_user_another_try(shop: Any, part: Part) -> None:
    """A check-back came before the deduction: that attempt can never take a unit, so a second one may."""
    await shop.stock.redis.set(part("stock").stock_key("again"), 5)
    first = part("stock").gid_of("again", "ann")
    assert await shop.stock.decide(first) == "rolled_back"
    assert await shop.buy("again", "ann") == "accepted"
    assert await shop.ts.outcome(first) is None
    assert await shop.ts.outcome(part("stock").gid_of("again", "ann", 2)) == "committed"
    assert await shop.stock.redis.get(part("stock").stock_key("again")) == "4"


async def test_giving_up_asks_redis_who_was_first(shop: Any, part: Part) -> None:
    """The user clicked twice. One request finds nothing left; then a unit is put back, and the other one takes it."""
    stock = part("stock")
    await shop.stock.redis.set(stock.stock_key("back"), 0)
    gid = stock.gid_of("back", "ann")
    await shop.ts.prepare(gid, [], check=shop.check)
    with pytest.raises(part("shop").NotEnough):
        await shop.stock.deduct("back", gid)
    await shop.stock.redis.set(stock.stock_key("back"), 1)
    assert await shop.stock.deduct("back", gid) == "done"
    assert await shop.give_up(gid) == "accepted"
    assert await shop.ts.outcome(gid) == "committed"


async def test_sold_out_is_for_good_where_it_was_first(shop: Any, part: Part) -> None:
    stock = part("stock")
    await shop.stock.redis.set(stock.stock_key("gone"), 0)
    shop.looks = False
    assert await shop.buy("gone", "ann") == "sold out"
    assert await shop.ts.outcome(stock.gid_of("gone", "ann")) == "rolled_back"


async def test_names_that_would_make_the_gid_of_another_order_are_refused(part: Part, redis: RedisServer) -> None:
    given = Namespace(
        broker="http://127.0.0.1:9",
        redis_port=redis.port,
        orders="",
        port=9,
        check_after=1,
        traps=None,
        without_look=False,
        sabotage=None,
    )
    service = part("shop").service(given)
    for path in ("/buy/shoes/ann:2", "/buy/shoes-ann/x", "/buy/shoes/", "/buy/shoes/a/b", "/buy/shoes/ä"):
        assert (await service._post({"path": path}, b""))[0] == 404
