"""A token that was revoked is of no use from that moment on, at any broker; what was done says who did it, and from
where, whichever broker they asked."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from access_clusters import Guarded, guarded_cluster, shown

from access_tokens import bearing
from brokers import BrokerProcess
from cutting_proxy import cutting_proxy
from dtm_grpc import GrpcClient, Refused
from eventually import eventually
from servers import Server
from shared_stores import MARKS, new_place, url_of
from tallystick.core.wire import JSON

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def guarded(postgres: Server) -> Iterator[Guarded]:
    """Two stores, three brokers: one owns nothing."""
    with guarded_cluster(url_of(postgres, postgres.new_database()), stores=2, brokers=3, grpc=True) as made:
        yield made


def asked(guarded: Guarded, by: BrokerProcess, method: str, path: str, content: Any = None, who: str = "admin") -> Any:
    body = None if content is None else json.dumps(content).encode()
    answer = guarded.ask(who, method, path, body, by=by, headers={"Content-Type": JSON})
    assert answer.status < 300, answer
    return answer.json() if answer.body else None


def places(guarded: Guarded) -> list[tuple[BrokerProcess, str]]:
    """Every broker, and every path to one of the stores or to all."""
    paths = ["/v1/topics", *(f"/stores/{store}/v1/topics" for store in guarded.cluster.owners())]
    return [(broker, path) for broker in guarded.cluster.brokers for path in paths]


def statuses(guarded: Guarded, token: str) -> Counter[int]:
    return Counter(
        guarded.ask("", "GET", path, by=broker, headers=bearing(token)).status for broker, path in places(guarded)
    )


def grpc_codes(guarded: Guarded, token: str) -> set[str]:
    found = set()
    for broker in guarded.cluster.brokers:
        with GrpcClient(broker) as client:
            try:
                client.call("NewGid", b"", metadata=[("authorization", f"Bearer {token}")])
                found.add("OK")
            except Refused as refused:
                found.add(refused.code)
    return found


def revoked_everywhere(guarded: Guarded, rounds: int) -> None:
    brokers = guarded.cluster.brokers
    for number in range(rounds):
        making, revoking = brokers[number % len(brokers)], brokers[(number + 1) % len(brokers)]
        name = f"gone-{number}"
        token = asked(guarded, making, "POST", "/v1/tokens", {"name": name, "roles": ["reader"]})["token"]
        assert statuses(guarded, token).keys() == {200}
        asked(guarded, revoking, "DELETE", f"/v1/tokens/{name}")
        assert statuses(guarded, token).keys() == {401}


def test_a_token_is_good_at_every_broker_until_it_is_revoked_at_any(guarded: Guarded) -> None:
    revoked_everywhere(guarded, 6)


@pytest.mark.full
@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in ("mysql", "redis")])
def test_a_revocation_acts_at_once_whatever_the_brokers_share(engine: str, request: pytest.FixtureRequest) -> None:
    with guarded_cluster(new_place(engine, request), stores=2, brokers=3) as guarded:
        revoked_everywhere(guarded, 3)


def test_grpc_knows_of_tokens_and_revocations_as_well(guarded: Guarded) -> None:
    made = asked(guarded, guarded.owner, "POST", "/v1/tokens", {"name": "called", "roles": ["producer"]})
    assert grpc_codes(guarded, made["token"]) == {"OK"}
    asked(guarded, guarded.other, "DELETE", "/v1/tokens/called")
    assert grpc_codes(guarded, made["token"]) == {"UNAUTHENTICATED"}


def test_nothing_that_was_sent_after_the_revocation_is_answered(guarded: Guarded) -> None:
    """Some ask all the time, each another broker, while the token is revoked."""
    token = asked(guarded, guarded.owner, "POST", "/v1/tokens", {"name": "busy", "roles": ["reader"]})["token"]
    over = threading.Event()
    found: list[tuple[float, int]] = []  # when it was sent, and its status

    def ask_on(place: tuple[BrokerProcess, str]) -> None:
        broker, path = place
        while not over.is_set():
            sent_at = time.monotonic()
            found.append((sent_at, guarded.ask("", "GET", path, by=broker, headers=bearing(token)).status))

    def answers(since: float) -> list[int]:
        return [status for sent_at, status in found if sent_at > since]

    with ThreadPoolExecutor(len(places(guarded))) as pool:
        asking = [pool.submit(ask_on, place) for place in places(guarded)]
        eventually(lambda: len(answers(0)) > 100, "requests under way")
        asked(guarded, guarded.other, "DELETE", "/v1/tokens/busy")
        revoked_at = time.monotonic()
        eventually(lambda: len(answers(revoked_at)) > 100, "requests after that")
        over.set()
        for each in asking:
            each.result()
    assert answers(0)[0] == 200
    assert set(answers(revoked_at)) == {401}


# --- who it was ------------------------------------------------------------------------------------------------------


def test_the_log_of_what_was_done_has_who_asked_first_and_from_where(guarded: Guarded) -> None:
    """From an address that is no broker's."""
    for number, (broker, path) in enumerate(places(guarded)):
        name = f"log.{number}"
        if path == "/v1/topics":
            assert _put(guarded, broker, f"{path}/{name}") == 200
            continue
        store = path.split("/")[2]
        assert _put(guarded, broker, f"/stores/{store}/v1/topics/{name}") == 200
    lines = asked(guarded, guarded.other, "GET", "/v1/audit?action=put_topic&limit=100")["lines"]
    told = {line["subject"].split()[0]: (line["who"], line["kind"], line["source"]) for line in lines}
    assert told == {f"log.{number}": ("admin", "static", "127.0.0.9") for number in range(len(places(guarded)))}


def _put(guarded: Guarded, broker: BrokerProcess, path: str) -> int:
    source = ("127.0.0.9", 0)
    with closing(http.client.HTTPConnection("127.0.0.1", broker.port, timeout=30, source_address=source)) as line:
        line.request("PUT", path, b'{"queues": 1}', {"Content-Type": JSON, **shown("admin")})
        return line.getresponse().status


# --- a broker that is cut off ----------------------------------------------------------------------------------------


def test_a_broker_that_is_cut_off_vouches_for_no_token_that_others_may_have_revoked(postgres: Server) -> None:
    """Those of its own configuration hold as long as it runs."""
    with (
        cutting_proxy(postgres.port) as proxy,
        guarded_cluster(
            url_of(postgres, postgres.new_database(), proxy.port), stores=1, brokers=1, lease="1s"
        ) as guarded,
    ):
        made = asked(guarded, guarded.owner, "POST", "/v1/tokens", {"name": "kept", "roles": ["reader"]})["token"]

        def answer(headers: dict[str, str]) -> Any:
            return guarded.ask("", "GET", "/v1/whoami", by=guarded.owner, headers=headers)

        assert answer(bearing(made)).status == 200
        proxy.arm("before")
        eventually(lambda: answer(bearing(made)).status != 200, "a lease without a look")
        refused = answer(bearing(made))
        assert (refused.status, refused.problem().code) == (503, "unavailable")
        assert "cut off" in refused.problem().detail
        assert answer(shown("reader")).status == 200
        proxy.calm()
        eventually(lambda: answer(bearing(made)).status == 200, "a look that succeeds")
