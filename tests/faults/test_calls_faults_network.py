"""Requests and answers between sender and broker that are lost, cut, doubled or late: the calls are made as for one."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from broker_script import Broken
from call_doors import DtmDoor, NativeDoor, calls_state, eventually_answered
from call_history import Told, violations
from call_load import CallLoad, expected_told
from call_service import Service, always, running
from seeds import chosen_seed

from brokers import BrokerProcess, running_broker
from fault_proxy import KINDS, Fault, fault_proxy
from raw_client import RawClient

pytestmark = pytest.mark.fault

FAST = {"check_interval": "50ms", "check_interval_cap": "200ms", "max_checks": 10_000, "log_level": "error"}
DOORS = {"native": NativeDoor, "dtm": DtmDoor}
BRANCHES = ["01", "02"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**FAST) as process:
        yield process


def twenty_times(what: Callable[[], None]) -> None:
    """At once, as far as that goes."""
    threads = [threading.Thread(target=what) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def until_answered(ask: Callable[[], Told | None]) -> Told | None:
    while True:
        try:
            return ask()
        except Broken:
            continue


def times_called(service: Service) -> dict[tuple[str, str], int]:
    return dict(Counter((one.gid, one.branch) for one in service.arrivals))


def test_over_a_bad_network_every_call_is_made_exactly_once() -> None:
    """The broker lives and the service answers, so nothing but a resubmission could double a call."""
    rng = random.Random(chosen_seed())

    def schedule(_: str) -> Fault:
        kind = rng.choice(KINDS) if rng.random() < 0.4 else "none"
        return Fault(kind, rng.uniform(0.0, 0.3), rng.random())

    with (
        running(Service()) as service,
        running_broker(**FAST) as broker,
        fault_proxy(broker.port, schedule) as proxy,
        CallLoad(broker, service, rng.randrange(10**6), count=50, url=proxy.url) as load,
    ):
        service.answer = always(200)
        load.settle()
    load.history.told |= expected_told(load)
    assert violations(load.history, service.arrivals, load.states) == []
    assert set(times_called(service).values()) == {1}
    assert load.unknown > 20
    assert set(proxy.met) >= {"lose answer", "twice", "late", "cut request"}


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("lost", ["prepare", "submit", "both"])
@pytest.mark.parametrize("fault", ["lose answer", "twice", "late", "cut request", "refuse"])
def test_a_request_that_is_sent_until_it_is_answered(broker: BrokerProcess, kind: str, lost: str, fault: str) -> None:
    """Each of them goes wrong three times."""
    left: Counter[str] = Counter(dict.fromkeys(("prepare", "submit") if lost == "both" else (lost,), 3))

    def schedule(_: str) -> Fault:
        if left[step] <= 0:
            return Fault()
        left[step] -= 1
        return Fault(fault, 0.2, 0.7)  # type: ignore[arg-type]

    gid, hour = f"{kind}-{lost}-{fault}".replace(" ", "-"), 3_600_000 if kind == "native" else 3_600
    with running(Service()) as service, fault_proxy(broker.port, schedule) as proxy:
        with RawClient(proxy.url, timeout=5) as client:
            door = DOORS[kind](client, service, hour)
            for step in ("prepare", "submit"):
                asked = (gid, BRANCHES) if step == "prepare" else (gid,)
                told = until_answered(partial(getattr(door, step), *asked))
            assert told == "ok"
        with RawClient(broker.url) as client:
            eventually_answered(lambda: calls_state(client, gid) == "done", "both calls are made")
        assert all(count < 3 for count in left.values()), "nothing went wrong"
        time.sleep(0.3 if fault in ("late", "twice") else 0)  # what was held up comes in after all is done
    assert service.of(gid) == [("01", 200), ("02", 200)]


@pytest.mark.parametrize("kind", DOORS)
def test_many_submissions_of_one_transaction_at_the_same_time(broker: BrokerProcess, kind: str) -> None:
    told: list[str] = []
    gid = f"{kind}-many"
    with running(Service()) as service:
        with RawClient(broker.url) as client:
            DOORS[kind](client, service).prepare(gid, BRANCHES)

        def submit() -> None:
            with RawClient(broker.url) as client:
                door = DOORS[kind](client, service)
                if isinstance(door, DtmDoor):
                    door.known[gid] = door.request(gid, BRANCHES)
                told.append(door.submit(gid))

        twenty_times(submit)
        with RawClient(broker.url) as client:
            eventually_answered(lambda: calls_state(client, gid) == "done", "both calls are made")
    assert told == ["ok"] * 20
    assert service.of(gid) == [("01", 200), ("02", 200)]


def test_twenty_submissions_without_a_prepare_make_one_transaction(broker: BrokerProcess) -> None:
    """dtm's submit brings its branches with it; whoever comes second must find those of the first."""
    told: list[str] = []
    with running(Service()) as service:

        def submit() -> None:
            with RawClient(broker.url) as client:
                door = DtmDoor(client, service)
                door.known["unprepared"] = door.request("unprepared", BRANCHES)
                told.append(door.submit("unprepared"))

        twenty_times(submit)
        with RawClient(broker.url) as client:
            eventually_answered(lambda: calls_state(client, "unprepared") == "done", "both calls are made")
    assert told == ["ok"] * 20
    assert service.of("unprepared") == [("01", 200), ("02", 200)]
