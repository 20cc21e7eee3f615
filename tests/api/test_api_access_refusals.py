"""What the log tells of those who were refused."""

from __future__ import annotations

import json
import logging

import pytest

from access_tokens import OWN, UNKNOWN, bearing, token
from access_tokens import settings as known_tokens
from brokers import running_broker
from dtm_grpc import GrpcClient, Refused, request_of
from raw_client import RawClient
from tallystick.api.access.refusal_log import MOST_SAID, SAY_AGAIN_SECONDS, RefusalLog


class Hand:
    """Of a clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_log_tells_the_route_the_address_and_the_name() -> None:
    reader, producer = OWN["reader"], OWN["producer"]
    body = b'{"messages": [{"topic": "t", "value": 1}]}'
    with running_broker(**known_tokens()) as broker, RawClient(broker.url) as client:
        for _ in range(3):
            assert client.request("GET", "/v1/topics/secret-path", None, bearing(UNKNOWN)).status == 401
            assert client.request("POST", "/v1/messages", body, reader.headers).status == 403
            assert client.request("GET", "/v1/tokens", None, producer.headers).status == 403
        told = [line for line in broker.log_text().splitlines() if "refused with" in line]
        assert len(told) == 3, told
        assert "401: GET /v1/topics/{topic}, from 127.0.0.1" in told[0]
        assert "403: POST /v1/messages, from 127.0.0.1, by 'reader'" in told[1]
        assert "403: GET /v1/tokens, from 127.0.0.1, by 'producer'" in told[2]
        assert UNKNOWN[18:] not in broker.log_text()


def test_those_who_are_refused_over_grpc_are_told_of_as_well() -> None:
    with running_broker(grpc=True, **known_tokens()) as broker:
        with GrpcClient(broker) as client, pytest.raises(Refused):
            client.new_gid()
        assert "refused with 401: " in broker.log_text()


def test_what_the_door_refuses_is_told_of_by_whichever_interface_it_was_asked() -> None:
    """Each by somebody else, whom the route is for, and the producer group of dtm is not."""
    known = {way: token(way, "producer", groups=["other"]) for way in ("http", "grpc", "rpc")}
    trans = {"gid": "g", "trans_type": "msg"}
    envelope = {"jsonrpc": "2.0", "id": "1", "method": "prepare", "params": trans}
    with running_broker(grpc=True, **known_tokens(*known.values())) as broker, RawClient(broker.url) as client:
        asked = client.request("POST", "/api/dtmsvr/prepare", json.dumps(trans), known["http"].headers)
        assert asked.status == 403
        asked = client.request("POST", "/api/json-rpc", json.dumps(envelope), known["rpc"].headers)
        assert (asked.status, asked.json()["error"]["code"]) == (200, -32603)
        shown = [("authorization", value) for value in known["grpc"].headers.values()]
        with GrpcClient(broker) as dtm, pytest.raises(Refused, match="PERMISSION_DENIED"):
            dtm.call("Prepare", request_of("g", []).SerializeToString(), metadata=shown)
        lines = [line for line in broker.log_text().splitlines() if "refused with" in line]
        assert [line.partition("refused with ")[2].removesuffix(" [tallystick.api]") for line in lines] == [
            "403: POST /api/dtmsvr/prepare, from 127.0.0.1, by 'http'",
            "403: POST /api/json-rpc, from 127.0.0.1, by 'rpc'",
            "403: /dtmgimp.Dtm/Prepare, from 127.0.0.1, by 'grpc'",
        ]
        numbers = client.request("GET", "/metrics", None, OWN["reader"].headers).body.decode()
        for route, status in (
            ("/api/dtmsvr/prepare", "403"),
            ("/api/json-rpc", "403"),
            ("/dtmgimp.Dtm/Prepare", "PERMISSION_DENIED"),
        ):
            assert f'tallystick_http_requests_total{{route="{route}",status="{status}"}} 1.0' in numbers


def test_each_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    refusals = RefusalLog(clock)
    with caplog.at_level(logging.WARNING, "tallystick.api"):
        for clock.now in (0.0, 1.0, SAY_AGAIN_SECONDS - 1, SAY_AGAIN_SECONDS, SAY_AGAIN_SECONDS + 1):
            refusals.tell(403, "GET /v1/topics", "192.0.2.1", "ann")
            refusals.tell(401, "GET /v1/topics", "192.0.2.1")
    assert len(caplog.records) == 4


def test_many_addresses_flood_neither_the_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    refusals = RefusalLog(clock)
    with caplog.at_level(logging.WARNING, "tallystick.api"):
        for number in range(MOST_SAID + 100):
            refusals.tell(401, "GET /v1/topics", f"address {number}")
        assert len(caplog.records) == MOST_SAID
        clock.now = SAY_AGAIN_SECONDS
        refusals.tell(401, "GET /v1/topics", "another one")
    assert len(caplog.records) == MOST_SAID + 1
