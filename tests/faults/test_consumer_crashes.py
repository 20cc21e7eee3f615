"""Consumers killed or stopped at every step between receiving a message and settling it: each effect is there once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from broker_view import BrokerView
from places import Place, sqlite_place
from shop import STEPS, Shop, effect_at
from survivors import BROKER

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually, eventually_equal
from fork_server import Child, ForkServer

pytestmark = pytest.mark.fault

SPARE = 5
AT_A_TIME = 10
COUNTS = {"inbox": 14, "offset": 21}
PASSED_ON = "a lease had passed to another consumer"

every_way = pytest.mark.parametrize("by", ["inbox", "offset"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER, default_queues=1) as process:
        yield process


@pytest.fixture
def shop(place: Place, broker: BrokerProcess, crew: ForkServer, by: str) -> Shop:
    return Shop(broker.url, place, crew, by)


@every_way
def test_the_steps_of_a_consumer_are_known(shop: Shop, by: str) -> None:
    shop.fill(1)
    child = shop.consumer("one", rest={shop.steps[-1]: shop.steps.count(shop.steps[-1])})
    assert child.wait() == 0, child.report
    (moments,) = child.reported("moments")
    assert moments == shop.steps
    assert len(STEPS[by]) == COUNTS[by]


@every_way
def test_consumers_killed_at_every_step_have_each_effect_once(shop: Shop) -> None:
    messages = shop.fill(len(shop.steps) + SPARE)
    for at, step in enumerate(shop.steps, 1):
        # What one leaves behind must not come to the next: that would pass through other steps.
        assert (step, shop.consumer(step, at, invisible=15.0).wait()) == (step, -signal.SIGKILL)
    last = shop.consumer("last")
    eventually_equal(shop.effects, messages)
    eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
    assert shop.effects() == messages
    last.kill()
    # Exactly those had an effect that came past its commit, so the kills were where they say.
    doers = {row[0] for row in shop.place.rows("select doer from effect")}
    assert doers - {"last", "local commit in flight"} == set(shop.steps[effect_at(shop.steps) :])


def test_without_an_inbox_a_kill_after_the_effect_doubles_it(
    place: Place, broker: BrokerProcess, crew: ForkServer
) -> None:
    """The control: the same kill and the same comparison, and the mistake is seen."""
    shop = Shop(broker.url, place, crew, "none")
    messages = shop.fill(3)
    assert shop.consumer("killed", shop.steps.index("after handler") + 1).wait() == -signal.SIGKILL
    last = shop.consumer("last")
    eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
    last.kill()
    assert shop.effects() - messages == Counter({next(iter(messages)): 1})


@every_way
def test_a_consumer_that_sleeps_past_its_lease_has_no_second_effect(
    place: Place, broker: BrokerProcess, crew: ForkServer, by: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def own_shop(at: int) -> Shop:
        directory = tmp_path_factory.mktemp("shop")
        own = sqlite_place(directory / f"{at}.db") if place.engine == "sqlite" else place
        return Shop(broker.url, own, crew, by)

    steps = Shop(broker.url, place, crew, by).steps
    cases = [(own_shop(at), at) for at, step in enumerate(steps, 1) if step != "local commit in flight"]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        told = list(pool.map(lambda case: sleeps(*case), cases))
    if by == "inbox":
        # It was too late in every case but those where the broker had its acknowledgement already.
        late = {steps[at - 1] for (_, at), was_late in zip(cases, told, strict=True) if was_late}
        unsettled = {steps[at - 1] for _, at in cases if not steps[at - 1].startswith("ack")}
        assert late - {"ack request in flight"} == unsettled


def sleeps(shop: Shop, at: int) -> bool:
    """One consumer stops at a moment, another takes over, the first goes on; whether it was told that it is late."""
    messages = shop.fill(1)
    sleeper = shop.consumer("sleeper", at, signal=signal.SIGSTOP)
    assert sleeper.wait_stopped(), sleeper.report
    second = shop.consumer("second")
    passed_on = shop.by == "inbox" and not shop.steps[at - 1].startswith("ack")
    if passed_on:
        second.wait_for_report("received")
    if not shop.locked(at):
        eventually_equal(shop.effects, messages)
    sleeper.resume()
    eventually_equal(shop.effects, messages)
    eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
    if passed_on:
        eventually(lambda: is_told_late(sleeper), f"the sleeper is told at {shop.steps[at - 1]}")
    sleeper.terminate()
    assert sleeper.wait() == 0, sleeper.report
    second.kill()
    assert shop.effects() == messages
    return is_told_late(sleeper)


def is_told_late(sleeper: Child) -> bool:
    return any(PASSED_ON in line for line in sleeper.reported("log"))


def test_a_stale_acknowledgement_is_refused_and_changes_nothing(broker: BrokerProcess) -> None:
    with tallystick.Client(broker.url) as first, tallystick.Client(broker.url) as second:
        first.send("stale", "once")
        (late,) = first.receive("stale", "group", invisible=0.2)
        (taken,) = second.receive("stale", "group", invisible=30, wait=5)
        assert (taken.id, taken.attempt) == (late.id, 2)
        for word in (first.ack, first.nack, first.renew):
            with pytest.raises(tallystick.errors.StaleLease):
                word("group", late)
        assert second.receive("stale", "group") == []
        second.ack("group", taken)
        assert BrokerView(broker.url).unsettled("group") == 0
