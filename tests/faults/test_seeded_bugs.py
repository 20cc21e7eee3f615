"""Negative controls with real processes: services with a known mistake, and the checker that must find it.

Each runs as the tests beside it do, up to a crash at the place where the mistake shows.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from history import History, violations
from places import Place, sqlite_place
from shop import Shop
from survivors import BROKER, Survivors, effects_of

from brokers import BrokerProcess, running_broker
from eventually import eventually, eventually_equal
from fork_server import ForkServer

pytestmark = pytest.mark.fault

GOOD = [f"good-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER) as process:
        yield process


@pytest.fixture
def service(tmp_path: Path) -> Place:
    return sqlite_place(tmp_path / "service.db")


@pytest.mark.parametrize(
    ("mistake", "invariant"),
    [
        pytest.param("commit first", "I1", id="the message is sent after the local commit"),
        pytest.param("send first", "I2", id="the message is sent before the local commit", marks=pytest.mark.full),
        pytest.param(
            "resolve first", "I2", id="the broker is told `committed` before the local commit", marks=pytest.mark.full
        ),
    ],
)
def test_a_producer_that_tells_database_and_broker_apart_is_found(
    mistake: str, invariant: str, broker: BrokerProcess, crew: ForkServer, service: Place, tmp_path: Path
) -> None:
    survivors = Survivors(broker.url, service, crew, tmp_path, 1.0)
    with survivors.living():
        for name in GOOD:
            assert survivors.produce("late", 0, name).wait() == 0
        where = {"url": broker.url, "group": survivors.group, "topic": survivors.topic, "place": service}
        assert crew.start("producer_main:naive", id="naive", mistake=mistake, **where).wait() == -signal.SIGKILL
        survivors.rest(0.5, seconds=3)
        eventually(lambda: set(GOOD) <= set(effects_of(survivors.effects["inbox"])))
        told = {**dict.fromkeys(GOOD, "ok"), "naive": "unknown"}
        found = violations(survivors.history(told, "inbox"))
    assert {(one.invariant, one.name) for one in found} == {(invariant, "naive")}


def test_a_consumer_without_an_inbox_is_found(broker: BrokerProcess, crew: ForkServer, service: Place) -> None:
    shop = Shop(broker.url, service, crew, "none")
    sent = set(shop.fill(5))
    # In the middle of the third message: its effect is committed, its acknowledgement not sent.
    at = 2 * len(shop.steps) + shop.steps.index("after handler") + 1
    assert shop.consumer("killed", at).wait() == -signal.SIGKILL
    last = shop.consumer("last")
    eventually_equal(lambda: shop.view.unsettled(shop.group), 0)
    last.kill()
    found = violations(History(sent=sent, confirmed=sent, effects=shop.effects()))
    assert [(one.invariant, one.what) for one in found] == [("I3", "the effect is there more than once")]
