"""kill -9 of a broker around its calls: at chosen moments, and again and again under load; with seeded bugs to find."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from call_doors import Door, DtmDoor, NativeDoor, calls_state, calls_view, eventually_answered
from call_history import CallHistory, body_of, violations
from call_load import CallLoad, expected_told
from call_service import Arrival, Service, running
from seeds import chosen_seed

from brokers import BrokerProcess, running_broker
from raw_client import RawClient

pytestmark = pytest.mark.fault

FAST = {
    "check_timeout": "500ms",
    "check_interval": "50ms",
    "check_interval_cap": "200ms",
    "max_checks": 10_000,
    "call_retry_first": "50ms",
    "call_retry_cap": "200ms",
    "call_probe": "50ms",
    "call_probe_cap": "200ms",
    "log_level": "error",
}
DOORS: dict[str, type[NativeDoor] | type[DtmDoor]] = {"native": NativeDoor, "dtm": DtmDoor}
BRANCHES = ["01", "02", "03"]


@pytest.fixture(params=DOORS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service() -> Iterator[Service]:
    with running(Service()) as made:
        yield made


def submitted(door: Door, gid: str, branches: list[str] = BRANCHES, concurrent: bool = False) -> None:
    door.prepare(gid, branches, concurrent)
    assert door.submit(gid) == "ok"


def finished(broker: BrokerProcess, gid: str) -> None:
    with RawClient(broker.url) as client:
        eventually_answered(lambda: calls_state(client, gid) == "done", f"{gid} is done")


# --- chosen moments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", BRANCHES)
@pytest.mark.parametrize("moment", ["when called", "before the answer", "after the answer"])
def test_killed_by_the_service_that_it_calls(service: Service, kind: str, branch: str, moment: str) -> None:
    """When it is called, when it has done its work but not answered, and when the answer has just been given."""
    struck, dead = threading.Event(), threading.Event()

    def strike(arrival: Arrival) -> None:
        if arrival.branch == branch and not struck.is_set():
            struck.set()
            if moment == "before the answer":
                time.sleep(0.05)
            broker.kill()
            dead.set()

    def answer(arrival: Arrival) -> int:
        if moment != "after the answer":
            strike(arrival)
        return 200

    service.answer = answer
    if moment == "after the answer":
        service.after = strike
    with running_broker(**FAST) as broker:
        with RawClient(broker.url) as client:
            submitted(DOORS[kind](client, service), "t")
        assert dead.wait(20)
        broker.start()
        finished(broker, "t")
    history = CallHistory({"t": BRANCHES}, told={"t": "ok"})
    assert violations(history, service.arrivals, {"t": "done"}) == []
    again = [one for one, _ in service.of("t")]
    assert set(again) == set(BRANCHES)
    assert {one: again.count(one) for one in BRANCHES if one != branch} == {one: 1 for one in BRANCHES if one != branch}
    assert again.count(branch) <= 2, "only the call that was cut off may come again"
    if moment != "after the answer":
        assert again.count(branch) == 2


@pytest.mark.parametrize("concurrent", [False, True])
def test_killed_right_after_a_submission_was_acknowledged(service: Service, kind: str, concurrent: bool) -> None:
    with running_broker(**FAST) as broker:
        for number in range(5):
            with RawClient(broker.url) as client:
                submitted(DOORS[kind](client, service), f"t{number}", concurrent=concurrent)
            broker.kill()
            broker.start()
        for number in range(5):
            finished(broker, f"t{number}")
    gids = [f"t{number}" for number in range(5)]
    history = CallHistory(dict.fromkeys(gids, BRANCHES), told=dict.fromkeys(gids, "ok"))
    history.concurrent = set(gids) if concurrent else set()
    assert violations(history, service.arrivals, dict.fromkeys(gids, "done")) == []


def test_what_was_prepared_or_rolled_back_is_not_called_after_a_kill(service: Service, kind: str) -> None:
    """The check-back cannot tell, so what is prepared stays so; the aborted one is gone for good."""
    with running_broker(**FAST) as broker:
        with RawClient(broker.url) as client:
            door = DOORS[kind](client, service)
            for gid in ("open", "aborted"):
                door.prepare(gid, BRANCHES)
            assert door.abort("aborted") == "failed"
        broker.kill()
        broker.start()
        eventually_answered(lambda: "open" in service.checks, "the check-back asks")
        with RawClient(broker.url) as client:
            door = DOORS[kind](client, service)
            door.prepare("after", ["01"])
            assert door.submit("after") == "ok"
            finished(broker, "after")
            assert (calls_state(client, "open"), calls_state(client, "aborted")) == ("held", "dropped")
            service.truth = lambda gid: 409
            eventually_answered(lambda: calls_state(client, "open") == "dropped", "the check-back rolls back")
    assert {one.gid for one in service.arrivals} == {"after"}


def test_a_call_that_is_done_is_not_made_again_however_often_the_broker_dies(service: Service, kind: str) -> None:
    """The second of two never succeeds; the first must not come again with it."""
    service.answer = lambda arrival: 200 if arrival.branch == "01" else 500
    with running_broker(**FAST) as broker:
        with RawClient(broker.url) as client:
            submitted(DOORS[kind](client, service), "t", ["01", "02"])
        for tries in range(1, 5):
            eventually_answered(lambda tries=tries: len(service.of("t")) > tries, "it is tried again")
            broker.kill()
            broker.start()
        with RawClient(broker.url) as client:
            view = calls_view(client, "t")
    assert view is not None
    assert [call["state"] for call in view["calls"]] == ["done", "waiting"]
    assert [branch for branch, _ in service.of("t")].count("01") == 1


def test_attempts_and_waits_are_kept_over_a_kill(service: Service, kind: str) -> None:
    service.answer = lambda _: 500
    slow = {**FAST, "call_retry_first": "200ms", "call_retry_cap": "1h"}
    with running_broker(**slow) as broker:
        with RawClient(broker.url) as client:
            door = NativeDoor(client, service) if kind == "native" else DtmDoor(client, service)
            if isinstance(door, DtmDoor):
                client.json("POST", "/api/dtmsvr/submit", {**door.request("t", ["01"]), "retry_interval": 1})
            else:
                submitted(door, "t", ["01"])
            eventually_answered(lambda: len(service.of("t")) >= 2, "two tries")
            eventually_answered(lambda: attempts_of(client) >= 2, "both are counted")
            before = attempts_of(client)
        broker.kill()
        broker.start()
        with RawClient(broker.url) as client:
            assert attempts_of(client) >= before


def attempts_of(client: RawClient) -> int:
    view = calls_view(client, "t")
    assert view is not None
    return int(view["calls"][0]["attempts"])


# --- at random, under load -------------------------------------------------------------------------------------------


def run_with_kills(broker: BrokerProcess, service: Service, seed: int, kills: int) -> CallLoad:
    rng = random.Random(seed)
    with CallLoad(broker, service, seed) as load:
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 0.9))
            broker.kill()
            broker.start()
        load.settle()
    return load


def problems_of(load: CallLoad) -> list[str]:
    """What the senders were told must hold, and so must what each transaction's own database says."""
    found = violations(load.history, load.service.arrivals, load.states)
    load.history.told |= expected_told(load)
    return sorted({*found, *violations(load.history, load.service.arrivals, load.states)})


def test_no_call_is_lost_invented_or_out_of_order(service: Service) -> None:
    with running_broker(**FAST) as broker:
        load = run_with_kills(broker, service, chosen_seed(), kills=10)
    assert problems_of(load) == []
    assert load.history.branches
    assert load.unknown > 0, "the kills hit nobody"
    assert {"committed", "rolled_back"} == set(load.truth.values())
    assert load.history.done_at, "the watcher saw nothing"


# --- the same with brokers that have a bug ---------------------------------------------------------------------------

FORGETS_DUE_CALLS = """
from tallystick.store.kv import calls, keys
right, seen = calls._put_in_line, []
def wrong(batch, gid, index, progress, at, why):
    right(batch, gid, index, progress, at, why)
    seen.append(1)
    if len(seen) % 10 == 0:
        batch.delete("index", keys.DUE_CALL.key(progress.channel, at, gid, index))
calls._put_in_line = wrong
"""
REPEATS_DONE_CALLS = """
from tallystick.broker.calls import deliverer
right = deliverer.Calls._make
async def wrong(self, host, claim, *rest):
    await right(self, host, claim, *rest)
    if int(claim.gid.split("-")[1]) % 10 == 0:
        await deliverer.asyncio.sleep(0.5)
        await deliverer.make_call(self._outbound, claim.gid, claim.call, 1_000)
deliverer.Calls._make = wrong
"""
DOES_NOT_WAIT_FOR_THE_FIRST = """
from tallystick.store.kv import calls
right = calls._line_up
def wrong(batch, gid, state):
    concurrent, state.concurrent = state.concurrent, True
    right(batch, gid, state)
    state.concurrent = concurrent
calls._line_up = wrong
"""
CALLS_WHAT_WAS_ROLLED_BACK = """
from tallystick.store.kv import calls
right = calls.settle
def wrong(batch, gid, spec, target, outcome, created_at, delay_ms):
    right(batch, gid, spec, target, "committed", created_at, delay_ms)
calls.settle = wrong
"""


seeded = partial(pytest.param, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("prelude", "word"),
    [
        pytest.param(FORGETS_DUE_CALLS, "lost", id="a store that forgets a due call"),
        seeded(REPEATS_DONE_CALLS, "again after it was done", id="a deliverer that repeats a done call"),
        seeded(DOES_NOT_WAIT_FOR_THE_FIRST, "out of order", id="a line that does not wait for the first"),
        seeded(CALLS_WHAT_WAS_ROLLED_BACK, "ghost", id="a store that calls what was rolled back"),
    ],
)
def test_a_broker_with_a_bug_is_found(service: Service, prelude: str, word: str) -> None:
    with running_broker(prelude=prelude, **FAST) as broker, CallLoad(broker, service, 1, count=25) as load:
        load.settle(seconds=3)
        found = problems_of(load)
    assert any(one.startswith(word) for one in found), found[:10]


# --- the checker alone -----------------------------------------------------------------------------------------------


def arrivals_of(*calls: tuple[str, str, int]) -> list[Arrival]:
    return [
        Arrival(2 * place, gid, branch, body_of(gid, branch), 1, 2 * place + 1, status)
        for place, (gid, branch, status) in enumerate(calls, 1)
    ]


def good() -> tuple[CallHistory, list[Arrival], dict[str, str | None]]:
    history = CallHistory({"a": ["01", "02"], "b": ["01"], "c": ["01", "02"], "d": ["01"]}, concurrent={"c"})
    history.told = {"a": "ok", "b": "failed", "c": "unknown"}
    came = arrivals_of(("c", "02", 200), ("a", "01", 500), ("a", "01", 200), ("c", "01", 200), ("a", "02", 200))
    history.done_at = {("a", "02"): 20, ("c", "02"): 3}
    return history, came, {"a": "done", "b": "dropped", "c": "done", "d": None}


def test_the_checker_has_nothing_against_a_good_history() -> None:
    assert violations(*good()) == []


Damage = Callable[[CallHistory, list[Arrival], dict[str, str | None]], object]
DAMAGES: dict[str, Damage] = {
    "lost: a/02": lambda history, came, states: came.pop(),
    "lost: c/01": lambda history, came, states: came.pop(3),
    "ghost: b/01": lambda history, came, states: came.extend(arrivals_of(("b", "01", 200))),
    "ghost: d/01": lambda history, came, states: came.extend(arrivals_of(("d", "01", 500))),
    "ghost: a/03": lambda history, came, states: came.extend(arrivals_of(("a", "03", 200))),
    "wrong body: a/01": lambda history, came, states: setattr(came[1], "body", b"other"),
    "again after it was done: c/02": lambda history, came, states: came.append(
        Arrival(30, "c", "02", body_of("c", "02"), 2, 31, 200)
    ),
    "again after it was done: a/01": lambda history, came, states: came.append(
        Arrival(30, "a", "01", body_of("a", "01"), 3, 31, 200)
    ),
    "out of order: a/02": lambda history, came, states: came.insert(0, came.pop()),
    "unfinished: a is waiting": lambda history, came, states: states.update(a="waiting"),
    "contradiction: b was told failed and is done": lambda history, came, states: states.update(b="done"),
    "contradiction: a was told ok and is dropped": lambda history, came, states: states.update(a="dropped"),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_the_checker_finds_each_kind_of_damage(problem: str) -> None:
    history, came, states = good()
    DAMAGES[problem](history, came, states)
    for number, arrival in enumerate(came) if problem.startswith("out of order") else ():
        arrival.number, arrival.answered = 2 * number, 2 * number + 1
    assert problem in violations(history, came, states)
