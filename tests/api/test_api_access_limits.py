"""Limits of a caller: how many requests at once, and how many bytes a second, over HTTP and gRPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import grpc
import pytest
from access_tokens import ADMIN, Token, token
from access_tokens import settings as known_tokens

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import Answer, RawClient
from tallystick.api.access.limits import CallerTraffic
from tallystick.core.access import CallerLimits
from tallystick.core.errors import Busy

TWO = token("two-at-once", "admin", max_in_flight=2)
SLOW = token("slow", "admin", bytes_per_second=10_000)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, **known_tokens(TWO, SLOW)) as broker, RawClient(broker.url) as client:
        assert client.request("PUT", "/v1/topics/quiet", b"{}", ADMIN.headers).status == 200
        yield broker
        assert "Traceback" not in broker.log_text()


def ask(broker: BrokerProcess, who: Token, path: str = "/v1/info") -> Answer:
    with RawClient(broker.url) as client:
        return client.request("GET", path, None, who.headers)


def call(broker: BrokerProcess, who: Token, body: bytes = b"") -> str:
    with grpc.insecure_channel(broker.grpc) as channel:
        metadata = [("authorization", f"Bearer {who.text}")]
        try:
            channel.unary_unary("/dtmgimp.Dtm/NewGid")(body, timeout=20, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def test_who_has_as_many_under_way_as_it_may_is_told_to_wait(broker: BrokerProcess) -> None:
    position = ask(broker, ADMIN, "/v1/topics?names=quiet").json()["position"]

    def poll() -> None:
        while ask(broker, TWO, f"/v1/topics?names=quiet&position={position}&wait_ms=60000").status == 429:
            pass  # the look below has met it

    polls = [threading.Thread(target=poll) for _ in range(2)]
    for one in polls:
        one.start()
    try:
        busy = eventually(lambda: (found := ask(broker, TWO)).status == 429 and found, "both polls under way")
        assert busy.headers["retry-after"] == "1"
        assert busy.problem().code == "busy"
        assert ask(broker, TWO, "/api/dtmsvr/version").status == 429
        assert call(broker, TWO) == "UNAVAILABLE"
        assert ask(broker, ADMIN).status == 200
        assert call(broker, ADMIN) == "OK"
        assert ask(broker, TWO, "/healthz").status == 200  # it counts for nobody
    finally:
        with RawClient(broker.url) as client:
            body = json.dumps({"messages": [{"topic": "quiet", "value": "now"}]})
            assert client.request("POST", "/v1/messages", body, ADMIN.headers).status == 201
        for one in polls:
            one.join()
    assert ask(broker, TWO).status == 200
    assert call(broker, TWO) == "OK"


def test_who_had_its_bytes_of_this_second_is_told_to_wait(broker: BrokerProcess) -> None:
    large = json.dumps({"messages": [{"topic": "quiet", "value": "x" * 100_000}]})
    with RawClient(broker.url) as client:
        assert client.request("POST", "/v1/messages", large, SLOW.headers).status == 201
        refused = client.request("POST", "/v1/messages", large, SLOW.headers)  # ten seconds of it are owed now
        assert (refused.status, refused.problem().code) == (429, "busy")
    assert call(broker, SLOW) == "UNAVAILABLE"
    assert ask(broker, ADMIN).status == 200


# --- the count itself ----------------------------------------------------------------------------------------------


def test_the_bytes_of_one_second_may_come_at_once_and_no_more() -> None:
    traffic, limits = CallerTraffic(), CallerLimits(bytes_per_second=1_000)
    traffic.enter("x", limits, 0.0)
    traffic.count(1_000, 1_000, 0.0)
    with pytest.raises(Busy, match="1000 bytes a second"):
        traffic.enter("x", limits, 0.0)
    traffic.enter("x", limits, 0.5)
    traffic.count(2_500, 1_000, 0.5)
    assert traffic.debt_seconds(1_000, 0.5) == pytest.approx(2.0, abs=0.01)
    with pytest.raises(Busy):
        traffic.enter("x", limits, 2.4)
    traffic.enter("x", limits, 2.6)
    assert traffic.debt_seconds(1_000, 1_000.0) == 0  # and what was not used is not saved up
    traffic.count(1_001, 1_000, 1_000.0)
    assert traffic.debt_seconds(1_000, 1_000.0) > 0
