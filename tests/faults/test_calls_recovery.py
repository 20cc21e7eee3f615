"""A service that was down comes back: everything that waited for it is delivered, whatever else is dead."""

from __future__ import annotations

import pytest
from call_doors import calls_view, eventually_answered
from call_history import body_of
from call_service import Service, closed_port, hanging, running

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.calls import OutgoingCall
from tallystick.core.ops import Send

pytestmark = pytest.mark.fault

MANY, HELD_UP = 1_200, 400
# A wait of an hour after the first tries: what is delivered sooner was brought forward because its host is back.
SETTINGS = {
    "call_timeout": "1s",
    "call_retry_first": "1h",
    "call_retry_cap": "1h",
    "call_probe": "100ms",
    "call_probe_cap": "500ms",
    "log_level": "error",
}


def send(broker: BrokerProcess, url: str, prefix: str, count: int) -> set[str]:
    """Transactions with two calls each, one after the other."""
    gids = [f"{prefix}-{number}" for number in range(count)]
    with RawClient(broker.url) as client:
        for first in range(0, count, 200):
            ops = [
                Send([], gid, calls=[OutgoingCall(f"{url}/{one}", body_of(gid, one)) for one in ("01", "02")])
                for gid in gids[first : first + 200]
            ]
            assert not any(result and result.error for result in client.batch(*ops))
    return set(gids)


def counts(broker: BrokerProcess) -> tuple[int, set[str]]:
    """How many calls are listed as waiting, and to which places they go."""
    found, after = [], ""
    with RawClient(broker.url) as client:
        while True:
            page = client.json("GET", f"/v1/calls?state=waiting&limit=1000{after}").json()
            found += page["calls"]
            if not page.get("next"):
                return len(found), {call["url"].rpartition("/")[0] for call in found}
            after = f"&after={page['next']}"


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(False, id="the broker lives on", marks=pytest.mark.full),
        pytest.param(True, id="the broker is killed meanwhile"),
    ],
)
def test_everything_that_waited_is_delivered_when_the_service_is_back(killed: bool) -> None:
    service = Service(port=closed_port())
    with running_broker(**SETTINGS) as broker, hanging() as dead:
        gids = send(broker, service.url, "back", MANY)
        lost = send(broker, f"http://127.0.0.1:{dead}", "dead", HELD_UP)
        eventually_answered(
            lambda: is_open(broker, service.url) and is_open(broker, f"http://127.0.0.1:{dead}"), "both are given up"
        )
        assert service.arrivals == []
        if killed:
            broker.kill()
            broker.start()
        with running(service):
            wanted = {(gid, branch) for gid in gids for branch in ("01", "02")}
            eventually_answered(lambda: service.successes() == wanted, "all of them are delivered", seconds=120)
            eventually_answered(
                lambda: counts(broker)[1] == {f"http://127.0.0.1:{dead}"}, "all of them are known to be done"
            )
        assert counts(broker)[0] == HELD_UP, "only the dead one's are left: the first call of each"
        assert lost.isdisjoint(one.gid for one in service.arrivals)
        assert_once_and_in_order(service)


def assert_once_and_in_order(service: Service) -> None:
    seen: dict[str, list[str]] = {}
    for one in service.arrivals:
        seen.setdefault(one.gid, []).append(one.branch)
    assert {tuple(branches) for branches in seen.values()} == {("01", "02")}


def is_open(broker: BrokerProcess, host: str) -> bool:
    with RawClient(broker.url) as client:
        views = client.json("GET", "/v1/call-hosts").json()["hosts"]
    return any(view["name"] == host and view["open"] for view in views)


def test_new_calls_do_not_wait_behind_the_old_ones_of_a_dead_service() -> None:
    with running(Service()) as alive, running_broker(**SETTINGS) as broker, hanging() as dead:
        send(broker, f"http://127.0.0.1:{dead}", "dead", HELD_UP)
        for number in range(5):
            gids = send(broker, alive.url, f"new{number}", 20)
            wanted = {(gid, branch) for gid in gids for branch in ("01", "02")}
            eventually_answered(lambda wanted=wanted: wanted <= alive.successes(), "the new ones are delivered")
        with RawClient(broker.url) as client:
            view = calls_view(client, "dead-0")
        assert view is not None
        assert view["state"] == "waiting"


def test_a_service_that_answers_badly_is_not_taken_for_a_dead_one() -> None:
    """Its calls are tried as often as they may, each at its own time; the breaker is for those who do not answer."""
    settings = {**SETTINGS, "call_retry_first": "50ms", "call_retry_cap": "100ms"}
    with running(Service()) as bad, running_broker(**settings) as broker:
        bad.answer = lambda arrival: 500 if arrival.attempt < 4 else 200
        gids = send(broker, bad.url, "bad", 50)
        wanted = {(gid, branch) for gid in gids for branch in ("01", "02")}
        eventually_answered(lambda: bad.successes() == wanted, "all of them are delivered")
        assert not is_open(broker, bad.url)
    assert all([status for _, status in bad.of(gid)] == [500, 500, 500, 200] * 2 for gid in gids)
