"""Switching access control on: what a broker refuses to start with, who is who, and what addresses may."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from access_tokens import ADMIN, OWN, STRANGERS, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from dtm_grpc import GrpcClient, Refused
from eventually import eventually
from raw_client import RawClient
from tallystick.broker.config import load_config
from tallystick.core.errors import ConfigError

EVERYWHERE = "0.0.0.0"
HERE = {"name": "legacy", "addresses": ["127.0.0.0/8", "::1/128"]}


@pytest.mark.parametrize("host", [EVERYWHERE, "::"])
@pytest.mark.parametrize("grpc", [True, False])
def test_a_broker_that_others_reach_does_not_start_unlocked(host: str, grpc: bool) -> None:
    with running_broker(start=False, host=host, grpc=grpc) as broker:
        broker.spawn()
        assert broker.ends_before_ready()
        log = broker.log_text()
        assert "auth is off" in log
        assert "tallystick tokens create" in log
        assert "allow_open" in log


@pytest.mark.parametrize("settings", [{"allow_open": True}, known_tokens()])
def test_it_starts_locked_or_if_somebody_insists(settings: dict[str, object]) -> None:
    with running_broker(host=EVERYWHERE, **settings) as broker:
        assert broker.get("/healthz") == 200
        assert broker.get("/v1/info") == (200 if "allow_open" in settings else 401)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_may_be_open(host: str) -> None:
    with running_broker(start=False, host=host) as broker:
        broker.spawn()
        if host != "127.0.0.2":
            broker.wait_ready()
            assert broker.get("/v1/info") == 200
        else:
            _wait_for(broker, host)


def _wait_for(broker: BrokerProcess, host: str) -> None:
    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, broker.port)) == 0

    eventually(listening, f"a broker on {host}")


def test_everybody_learns_who_they_are() -> None:
    more = token(
        "shop", "producer", "caller", topics=["orders.*"], hosts=["127.0.0.1"], max_in_flight=7, expires_at=2**50
    )
    with running_broker(**known_tokens(more)) as broker, RawClient(broker.url) as client:
        told = client.request("GET", "/v1/whoami", None, more.headers).json()
        assert told == {
            "name": "shop",
            "kind": "static",
            "grants": [{"roles": ["producer", "caller"], "topics": ["orders.*"], "hosts": ["127.0.0.1"]}],
            "limits": {"max_in_flight": 7},
            "expires_at": 2**50,
            "source": "127.0.0.1",
        }
        assert client.request("GET", "/v1/whoami").status == 401
        assert more.text not in broker.log_text()
    with running_broker() as broker, RawClient(broker.url) as client:
        told = client.request("GET", "/v1/whoami").json()
        assert (told["name"], told["kind"], told["source"]) == ("anybody", "open", "127.0.0.1")
        assert client.request("GET", "/v1/info", None, ADMIN.headers).status == 200  # nobody looks at it


# --- addresses -----------------------------------------------------------------------------------------------------


def test_dtms_clients_are_known_by_where_they_come_from() -> None:
    grant = {**HERE, "roles": ["producer", "caller"], "groups": ["dtm"], "hosts": ["127.0.0.1:1"]}
    with (
        running_broker(grpc=True, check_after="1h", address_grants=[grant], **known_tokens()) as broker,
        RawClient(broker.url) as client,
        GrpcClient(broker) as dtm,
    ):
        assert client.request("GET", "/v1/whoami").json()["kind"] == "address"
        trans = {"gid": "g", "trans_type": "msg", "query_prepared": "http://127.0.0.1:1/q"}
        steps = {"steps": [{"action": "http://127.0.0.1:1/x"}], "payloads": ["{}"]}
        assert client.json("POST", "/api/dtmsvr/prepare", {**trans, **steps}).status == 200
        assert client.json("POST", "/api/dtmsvr/submit", {**trans, **steps}).status == 200
        dtm.prepare("by-grpc", [], "127.0.0.1:1/q.Q/q")
        elsewhere = {**trans, "gid": "h", "steps": [{"action": "http://127.0.0.1:2/x"}], "payloads": ["{}"]}
        answer = client.json("POST", "/api/dtmsvr/prepare", elsewhere)
        assert (answer.status, list(answer.json())) == (403, ["message"])
        with pytest.raises(Refused) as caught:
            dtm.subscribe("t", "127.0.0.1:1/x")
        assert caught.value.code == "PERMISSION_DENIED"
        assert client.json("POST", "/api/dtmsvr/forceStop", {"gid": "g"}).status == 403
        assert client.json("POST", "/v1/messages", {"messages": [{"topic": "t", "value": "x"}]}).status == 201
        # What somebody says counts before where it comes from, and is not mended by that.
        assert client.request("GET", "/v1/whoami", None, OWN["reader"].headers).json()["name"] == "reader"
        for who, headers in STRANGERS.items():
            expected = 200 if not headers.get("Authorization") else 401
            assert client.request("GET", "/v1/whoami", None, headers).status == expected, who


def test_an_address_that_is_not_in_the_range_is_nobodys() -> None:
    grant = {"name": "others", "addresses": ["10.0.0.0/8", "127.0.0.2/32"], "roles": ["admin"]}
    with running_broker(address_grants=[grant], **known_tokens()) as broker, RawClient(broker.url) as client:
        assert client.request("GET", "/v1/info").status == 401
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Tallystick-Forwarded"):
            assert client.request("GET", "/v1/info", None, {header: "10.0.0.1"}).status == 401


# --- the configuration ---------------------------------------------------------------------------------------------

_TOKEN = ADMIN.table
_RANGE = {"name": "a", "roles": ["admin"]}
_WRONG = [
    ({"static_tokens": [_TOKEN]}, {}, "static_tokens: of no use while auth is off"),
    ({"static_tokens": [_TOKEN, _TOKEN]}, {"auth": "tokens"}, "more than once"),
    ({"static_tokens": [{**_TOKEN, "roles": ["king"]}]}, {"auth": "tokens"}, "king"),
    ({"static_tokens": [{**_TOKEN, "roles": []}]}, {"auth": "tokens"}, "roles"),
    ({"static_tokens": [{**_TOKEN, "token_sha256": ADMIN.text}]}, {"auth": "tokens"}, "token_sha256"),
    ({"static_tokens": [{**_TOKEN, "topic": "typo"}]}, {"auth": "tokens"}, "topic"),
    (
        {"address_grants": [{"name": "a", "addresses": ["10.0.0.1/8"], "roles": ["admin"]}]},
        {"auth": "tokens"},
        "10.0.0",
    ),
    ({"address_grants": [{**_RANGE, "addresses": ["10.0.0.1/8"]}]}, {"auth": "tokens"}, "10.0.0"),
    ({"address_grants": [{**_RANGE, "addresses": ["here"]}]}, {"auth": "tokens"}, "here"),
    ({}, {"auth": "on"}, "auth"),
    *(
        ({}, {"browser_hosts": host}, "browser_hosts")
        for host in ("http://a.example", "a.example:7440", "*.example", "A.example", "a.example.")
    ),
]


@pytest.mark.parametrize(("tables", "rest", "says"), _WRONG)
def test_what_is_wrong_with_the_settings_is_told_and_no_secret(
    tmp_path: Path, tables: dict[str, list[dict[str, object]]], rest: dict[str, str], says: str
) -> None:
    file = tmp_path / "broker.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in rest.items()]
    for name, rows in tables.items():
        for row in rows:
            lines += [f"[[{name}]]", *(f"{key} = {json.dumps(value)}" for key, value in row.items())]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    assert says in caught.value.detail
    assert ADMIN.text not in repr(caught.value) + str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["static_tokens", "address_grants"])
def test_tables_come_from_a_file_only(name: str) -> None:
    with pytest.raises(ConfigError, match="only a file can hold"):
        load_config(environ={f"TALLYSTICK_{name.upper()}": "x"})


def test_the_log_tells_at_the_start_whether_anybody_can_be_let_in() -> None:
    with running_broker() as broker:
        assert "access control is off" in broker.log_text()
    with running_broker(auth="tokens") as broker:
        log = broker.log_text()
        assert "0 in the store, 0 in the configuration" in log
        assert "tallystick tokens create NAME --role admin --data-dir" in log
    with running_broker(**known_tokens()) as broker:
        log = broker.log_text()
        assert "access control is on" in log
        assert "nobody can be let in" not in log
