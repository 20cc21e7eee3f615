"""Consumers of batches, killed or stopped between and inside them: all effects of a batch or none, and each once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from places import Place, sqlite_place
from shop import Shop, effect_at
from survivors import BROKER

from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from fork_server import ForkServer

pytestmark = pytest.mark.fault

BATCH = 3
AT_A_TIME = 5
FAILS = "-1"
"""The end of the name of a message that fails: the second one of a batch."""

every_way = pytest.mark.parametrize("by", ["inbox", "offset"])

NewShop = Callable[[], Shop]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER, default_queues=1) as process:
        yield process


@pytest.fixture
def by() -> str:
    return "inbox"


@pytest.fixture
def new_shop(
    place: Place, broker: BrokerProcess, crew: ForkServer, by: str, tmp_path_factory: pytest.TempPathFactory
) -> NewShop:
    """A topic of its own each, and where one writer keeps all others out, a database."""

    def make() -> Shop:
        alone = place.engine == "sqlite"
        own = sqlite_place(tmp_path_factory.mktemp("shop") / "service.db") if alone else place
        return Shop(broker.url, own, crew, by, BATCH)

    return make


def steps_of(shop: Shop, **more: str) -> list[str]:
    """The moments of a consumer from its start to the end of its first batch, found by running one."""
    shop.fill(BATCH)
    if "fails" in more:
        last = {"failed handler": 2}
    else:
        # By offset there is a transaction before it, which reads where the group is.
        last = {"ack request answered": 1} if shop.by == "inbox" else {"after local commit": 2}
    child = shop.consumer("one", rest=last, **more)
    assert child.wait() == 0, child.report
    (moments,) = child.reported("moments")
    return list(moments)


def killed(shop: Shop, at: int, **more: str) -> Counter[str]:
    """A consumer dies at a moment, another one follows, up to a message after the batch; what was in the batch."""
    messages = shop.fill(BATCH)
    assert shop.consumer("killed", at, **more).wait() == -signal.SIGKILL
    after = shop.fill(1, BATCH)
    last = shop.consumer("last")
    eventually_equal(lambda: after - shop.effects(), Counter())
    eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
    last.kill()
    return messages


def effects_of(shop: Shop, messages: Counter[str]) -> Counter[str]:
    effects = shop.effects()
    return Counter({name: effects[name] for name in messages})


@every_way
def test_a_batch_is_one_local_transaction(new_shop: NewShop, by: str) -> None:
    steps = steps_of(new_shop())
    assert steps.count("after handler") == BATCH
    assert steps.count("after local commit") == (1 if by == "inbox" else 2)
    assert steps.count("ack request answered") == (1 if by == "inbox" else 0)


@every_way
def test_consumers_killed_at_every_step_have_all_effects_of_a_batch_or_none(new_shop: NewShop) -> None:
    steps = steps_of(new_shop())
    done = effect_at(steps)

    def dies(at: int) -> None:
        shop = new_shop()
        messages = killed(shop, at)
        assert effects_of(shop, messages) == messages
        # All of them had their effect in the one process or all in the other, so the kills were where they say.
        if steps[at - 1] != "local commit in flight":
            assert (steps[at - 1], shop.doers(messages)) == (steps[at - 1], {"killed" if at > done else "last"})

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(dies, range(1, len(steps) + 1)))


@pytest.mark.parametrize("by", ["inbox", pytest.param("offset", marks=pytest.mark.full)])
def test_consumers_killed_while_a_batch_is_undone_have_each_effect_once(new_shop: NewShop) -> None:
    steps = steps_of(new_shop(), fails=FAILS)
    assert "after local rollback" in steps

    def dies(at: int) -> None:
        shop = new_shop()
        messages = killed(shop, at, fails=FAILS)
        assert effects_of(shop, messages) == messages

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        # Up to the second failure; what follows is a message by itself, and has tests of its own.
        list(pool.map(dies, range(1, len(steps) - steps[::-1].index("failed handler") + 1)))


@every_way
def test_a_consumer_that_sleeps_past_its_leases_has_no_second_effect(new_shop: NewShop, by: str) -> None:
    steps = steps_of(new_shop())

    def sleeps(at: int) -> None:
        shop = new_shop()
        messages = shop.fill(BATCH)
        sleeper = shop.consumer("sleeper", at, signal=signal.SIGSTOP)
        assert sleeper.wait_stopped(), sleeper.report
        second = shop.consumer("second")
        if by == "inbox" and not steps[at - 1].startswith("ack"):
            second.wait_for_report("received")  # the leases have passed on
        sleeper.resume()
        eventually_equal(shop.effects, messages)
        eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
        sleeper.terminate()
        assert sleeper.wait() == 0, sleeper.report
        second.kill()
        assert shop.effects() == messages

    changes = ("after statement", "after handler", "after local commit", "ack")
    inside = [at for at, step in enumerate(steps, 1) if step.startswith(changes)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(sleeps, inside))


@pytest.mark.parametrize(
    ("mistake", "found"),
    [
        pytest.param("rows apart", {0}, id="rows that are committed before the effects: lost"),
        pytest.param("effects apart", {1, 2}, id="effects that are committed before the rows: doubled"),
    ],
)
def test_batches_with_a_mistake_are_found(new_shop: NewShop, mistake: str, found: set[int]) -> None:
    """The control: the same kills and the same comparison."""
    steps = steps_of(new_shop(), mistake=mistake)
    shop = new_shop()
    messages = killed(shop, steps.index("after local commit") + 1, mistake=mistake)
    assert set(effects_of(shop, messages).values()) == found
