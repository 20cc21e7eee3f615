"""A crash at each step of a block, in each mode: afterwards database and broker agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from testing_shop import Shop

import tallystick
from tallystick.client.transactions import script
from tallystick.testing import STEPS, MemoryBroker, SimulatedCrash, Step, crash_at

CHECK_BACK, OUTBOX, DEDUP = {"mode": "check-back"}, {"mode": "outbox"}, {"mode": "consumer-dedup"}
EARLY = {"mode": "check-back", "prepare": "early"}
DURABLE = ("after commit", "answer lost")


def modes(*here: dict[str, str], full: list[dict[str, str]]) -> pytest.MarkDecorator:
    """A test for each mode; those of `full` only in the full run."""
    marked = [pytest.param(mode, marks=pytest.mark.full) for mode in full]
    return pytest.mark.parametrize("mode", [*here, *marked], ids=lambda mode: " ".join(mode.values()))


def steps(*here: Step) -> pytest.MarkDecorator:
    """A test for each step; all but these only in the full run."""
    marks = {step: [] if step in here else [pytest.mark.full] for step in STEPS}
    return pytest.mark.parametrize("step", [pytest.param(step, marks=marks[step]) for step in STEPS])


def order(ts: tallystick.Client, shop: Shop, item: str, **mode: Any) -> None:
    with ts.transaction(shop.conn, **mode) as tx:
        if mode.get("prepare") == "early":
            tx.send("orders", {"item": item})
            tx.prepare()
        shop.conn.execute("insert into orders values (?)", (item,))
        if mode.get("prepare") != "early":
            tx.send("orders", {"item": item})


async def order_async(ts: tallystick.AsyncClient, conn: Any, item: str, **mode: Any) -> None:
    async with ts.transaction(conn, **mode) as tx:
        if mode.get("prepare") == "early":
            tx.send("orders", {"item": item})
            await tx.prepare()
        await conn.execute(text("insert into orders values (:item)"), {"item": item})
        if mode.get("prepare") != "early":
            tx.send("orders", {"item": item})


def sent(broker: MemoryBroker) -> list[str]:
    return [message.json()["item"] for message in broker.messages("orders")]


@modes(CHECK_BACK, OUTBOX, DEDUP, full=[EARLY])
@pytest.mark.parametrize("step", STEPS)
def test_the_books_agree_after_a_crash_at_any_step(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, step: Step, mode: dict[str, Any]
) -> None:
    with crash_at(step):
        order(tallystick_client, shop, "hat", **mode)
    tallystick_broker.check_back()
    assert shop.items() == sent(tallystick_broker) == (["hat"] if step in DURABLE else [])
    order(tallystick_client, shop, "coat", **mode)
    assert shop.items() == sent(tallystick_broker)


@modes(CHECK_BACK, full=[OUTBOX, DEDUP, EARLY])
@pytest.mark.parametrize("step", STEPS)
async def test_the_books_agree_after_a_crash_of_an_async_block(
    tallystick_broker: MemoryBroker,
    tallystick_async_client: tallystick.AsyncClient,
    shop: Shop,
    step: Step,
    mode: dict[str, Any],
) -> None:
    engine = shop.engine()
    async with tallystick_async_client as ts, engine.connect() as conn:
        with crash_at(step):
            await order_async(ts, conn, "hat", **mode)
        await tallystick_broker.acheck_back()
        assert shop.items() == sent(tallystick_broker) == (["hat"] if step in DURABLE else [])
        await order_async(ts, conn, "coat", **mode)
        assert shop.items() == sent(tallystick_broker)
    await engine.dispose()


@steps("after prepare", "after commit")
async def test_the_books_agree_after_a_crash_of_an_async_block_on_a_synchronous_connection(
    tallystick_broker: MemoryBroker, tallystick_async_client: tallystick.AsyncClient, shop: Shop, step: Step
) -> None:
    async with tallystick_async_client as ts:
        with crash_at(step):
            async with ts.transaction(shop.conn) as tx:
                shop.conn.execute("insert into orders values ('hat')")
                tx.send("orders", {"item": "hat"})
        await tallystick_broker.acheck_back()
        assert shop.items() == sent(tallystick_broker) == (["hat"] if step in DURABLE else [])


@steps("after mark", "after prepare")
def test_the_books_agree_where_the_prepare_travels_while_the_mark_is_made(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, step: Step
) -> None:
    for number in range(4):  # from then on the client expects this database
        order(tallystick_client, shop, f"hat {number}")
    with crash_at(step):
        order(tallystick_client, shop, "coat")
    tallystick_broker.check_back()
    assert shop.items() == sent(tallystick_broker)
    assert ("coat" in shop.items()) == (step in DURABLE)


def pending_after(broker: MemoryBroker, ts: tallystick.Client, shop: Shop, step: Step) -> list[str]:
    with crash_at(step):
        order(ts, shop, "hat")
    return [view.state for view in broker.transactions()]


@pytest.mark.parametrize(
    ("step", "states"),
    [
        ("before begin", []),
        ("after begin", []),
        ("before prepare", []),
        ("after mark", []),
        ("after prepare", ["prepared"]),
        ("before commit", ["prepared"]),
        ("after commit", ["prepared"]),
        ("answer lost", ["committed"]),
    ],
)
def test_each_step_is_where_it_says(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, step: Step, states: list[str]
) -> None:
    assert pending_after(tallystick_broker, tallystick_client, shop, step) == states


def test_a_crash_leaves_nothing_behind_in_the_connection(tallystick_client: tallystick.Client, shop: Shop) -> None:
    with crash_at("before commit") as crash:
        order(tallystick_client, shop, "hat")
    assert crash.happened
    assert not shop.conn.in_transaction
    assert script._watch is None


def test_the_crash_reaches_the_code_around_the_block(tallystick_client: tallystick.Client, shop: Shop) -> None:
    seen: list[BaseException] = []
    with crash_at("after commit"):
        try:
            order(tallystick_client, shop, "hat")
        except BaseException as crash:
            seen.append(crash)
            raise
    assert isinstance(seen[0], SimulatedCrash)
    assert not isinstance(seen[0], Exception)


def test_a_block_that_sends_nothing_can_crash_too(tallystick_client: tallystick.Client, shop: Shop) -> None:
    for step in STEPS:
        with crash_at(step), tallystick_client.transaction(shop.conn):
            shop.conn.execute("insert into orders values (?)", (step,))
    assert shop.items() == list(DURABLE)


def test_only_one_block_dies(tallystick_client: tallystick.Client, shop: Shop) -> None:
    with crash_at("before commit") as crash:
        with pytest.raises(SimulatedCrash):
            order(tallystick_client, shop, "hat")
        order(tallystick_client, shop, "coat")
    assert crash.happened
    assert shop.items() == ["coat"]


def test_a_crash_that_does_not_happen_is_an_error(tallystick_client: tallystick.Client, shop: Shop) -> None:
    with pytest.raises(AssertionError, match="no block came to the step 'after commit'"), crash_at("after commit"):
        pass


def test_an_error_of_the_block_is_raised_as_it_is(tallystick_client: tallystick.Client, shop: Shop) -> None:
    def fails() -> None:
        with tallystick_client.transaction(shop.conn):
            raise KeyError("hat")

    with pytest.raises(KeyError), crash_at("after commit"):
        fails()


def test_two_crashes_at_once_are_refused() -> None:
    second = crash_at("after begin")
    with pytest.raises(RuntimeError, match="one crash_at at a time"), crash_at("before begin"), second:
        pass


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="'after lunch' is none of the steps") as failed:
        crash_at("after lunch")  # type: ignore[arg-type]
    assert repr(failed.traceback[-1].frame.f_locals["self"]) == "crash_at('after lunch')"
    assert failed.traceback.filter(failed)[-1].path == Path(__file__)


def test_the_fixture_runs_a_test_for_each_step(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, tallystick_crash: Any
) -> None:
    with tallystick_crash:
        order(tallystick_client, shop, "hat")
    tallystick_broker.check_back()
    assert shop.items() == sent(tallystick_broker)
