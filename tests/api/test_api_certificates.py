"""Certificates of clients at a running broker: the names in them say what their holders may do, over HTTP and gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from access_tokens import OWN, STRANGERS, Token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from certificates import Authority
from raw_client import Answer, RawClient
from tallystick.api.dtm.grpc.messages import DtmTopicRequest

GRANTS = [
    {"name": "DNS:*.shop.internal", "roles": ["producer"], "topics": ["orders.*"]},
    {"name": "CN=billing", "roles": ["consumer"], "groups": ["billing"]},
    {"name": "URI:spiffe://shop/ops/*", "roles": ["admin"]},
]
NEW_GID, SUBSCRIBE = "/dtmgimp.Dtm/NewGid", "/dtmgimp.Dtm/Subscribe"
# By their time everything has passed, as soon as there is a file of this name beside the broker.
LATER = """
import os
import tallystick.api.serving.peer_names as peer_names

peer_names.has_passed = lambda moment: moment < float("inf") and os.path.exists("later")
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    # The tests' own look at whether it is ready shows the broker's certificate.
    certificate, key = authority.issue("broker", "127.0.0.1")
    given = {"tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, "tls_client_ca": authority.path}
    return {**given, **known_tokens(), "certificates": GRANTS, **more}


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[BrokerProcess]:
    """One that takes clients without a certificate, too, over HTTP."""
    with running_broker(**settings(authority)) as running:
        yield running


@pytest.fixture(scope="module")
def insisting(authority: Authority) -> Iterator[BrokerProcess]:
    """One that does not, so that clients show theirs over gRPC as well."""
    with running_broker(grpc=True, **settings(authority, tls_client_required=True)) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> dict[str, tuple[Path, Path]]:
    return {
        "web": authority.issue("web", "WEB.shop.internal"),
        "billing": authority.issue("billing"),
        "ops": authority.issue("somebody", uris=("spiffe://shop/ops/ann",)),
        "nobody": authority.issue("nobody", "web.other.internal", uris=("spiffe://shop/dev/bob",)),
    }


class Shown:
    """A client with a certificate, or without one, and with a token, or without."""

    def __init__(
        self, broker: BrokerProcess, authority: Authority, own: tuple[Path, ...] = (), token: Token | None = None
    ) -> None:
        self._broker, self._authority, self._own = broker, authority, own
        self._headers = token.headers if token else {}

    def ask(self, method: str, path: str, content: Any = None, **headers: str) -> Answer:
        with RawClient(self._broker.url, tls=self._authority.trusting(*self._own)) as client:
            client_headers = {**self._headers, **headers}
            if content is None:
                return client.request(method, path, None, client_headers)
            body = json.dumps(content).encode()
            return client.request(method, path, body, {"Content-Type": "application/json", **client_headers})

    def send(self, topic: str) -> int:
        return self.ask("POST", "/v1/messages", {"messages": [{"topic": topic, "value": "x"}]}).status

    def receive(self, group: str) -> int:
        return self.ask("POST", f"/v1/groups/{group}/receive", {"topic": "orders.new", "max": 1}).status

    def whoami(self) -> tuple[str, str]:
        told = self.ask("GET", "/v1/whoami").json()
        return told["name"], told["kind"]

    def call(self, route: str = NEW_GID, message: bytes = b"") -> str:
        with channel_to(self._broker, self._authority, self._own) as channel:
            return called(channel, route, message, self._headers)


def channel_to(broker: BrokerProcess, authority: Authority, own: tuple[Path, ...]) -> grpc.Channel:
    key, chain = (own[1].read_bytes(), own[0].read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), key, chain)
    # Channels to one address share their connection unless they are told not to.
    return grpc.secure_channel(broker.grpc, credentials, [("grpc.use_local_subchannel_pool", 1)])


def called(channel: grpc.Channel, route: str, message: bytes, headers: dict[str, str]) -> str:
    metadata = [(name.lower(), value) for name, value in headers.items()]
    try:
        channel.unary_unary(route)(message, timeout=30, metadata=metadata)
    except grpc.RpcError as error:
        return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


# --- over HTTP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "name"),
    [("web", "DNS:WEB.shop.internal"), ("billing", "CN=billing"), ("ops", "URI:spiffe://shop/ops/ann")],
)
@pytest.mark.parametrize("kind", ["broker", "insisting"])
def test_a_name_in_a_certificate_is_who_somebody_is(
    request: pytest.FixtureRequest, authority: Authority, certificates: Any, kind: str, who: str, name: str
) -> None:
    assert Shown(request.getfixturevalue(kind), authority, certificates[who]).whoami() == (name, "certificate")


def test_its_grant_says_what_they_may_do_and_no_more(
    broker: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    web, billing, ops = (Shown(broker, authority, certificates[who]) for who in ("web", "billing", "ops"))
    assert [web.send(topic) for topic in ("orders.new", "stock.new")] == [201, 403]
    assert [billing.receive(group) for group in ("billing", "shop")] == [200, 403]
    assert (billing.send("orders.new"), web.receive("billing")) == (403, 403)
    assert (ops.send("stock.new"), ops.ask("GET", "/v1/tokens").status) == (201, 200)
    assert web.ask("GET", "/v1/tokens").status == 403


def test_a_certificate_without_a_grant_is_nobody_and_so_is_none(
    broker: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    for own in (certificates["nobody"], ()):
        stranger = Shown(broker, authority, own)
        assert (stranger.send("orders.new"), stranger.ask("GET", "/v1/whoami").status) == (401, 401)
        assert stranger.ask("GET", "/healthz").status == 200
    with_token = Shown(broker, authority, certificates["nobody"], OWN["reader"])
    assert with_token.whoami() == ("reader", "static")


def test_of_a_token_and_a_certificate_the_token_counts_right_or_wrong(
    broker: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    reader = Shown(broker, authority, certificates["ops"], OWN["reader"])
    assert reader.whoami() == ("reader", "static")
    assert reader.ask("GET", "/v1/tokens").status == 403
    for what, headers in STRANGERS.items():
        expected = 401 if headers.get("Authorization") else 200
        assert Shown(broker, authority, certificates["ops"]).ask("GET", "/v1/whoami", **headers).status == expected, (
            what
        )


def test_what_somebody_did_is_in_the_audit_log_by_the_name_in_the_certificate(
    broker: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    ops = Shown(broker, authority, certificates["ops"])
    assert ops.ask("PUT", "/v1/topics/by-ops", {"queues": 1}).status == 200
    assert ops.ask("DELETE", "/v1/topics/by-ops").status == 204
    line = ops.ask("GET", "/v1/audit?action=delete_topic").json()["lines"][0]
    assert (line["who"], line["kind"], line["source"], line["subject"]) == (
        "URI:spiffe://shop/ops/ann",
        "certificate",
        "127.0.0.1",
        "by-ops",
    )


# --- over gRPC ----------------------------------------------------------------------------------------------------


def test_names_in_certificates_count_over_grpc_as_well(
    insisting: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    subscribed = DtmTopicRequest(Topic="by-ops", URL="grpc://127.0.0.1:1/a.B/C").SerializeToString()
    web, ops, nobody = (Shown(insisting, authority, certificates[who]) for who in ("web", "ops", "nobody"))
    assert (web.call(), web.call(SUBSCRIBE, subscribed)) == ("OK", "PERMISSION_DENIED")
    assert (ops.call(), ops.call(SUBSCRIBE, subscribed)) == ("OK", "OK")
    assert (nobody.call(), nobody.call(SUBSCRIBE, subscribed)) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    line = ops.ask("GET", "/v1/audit?limit=1").json()["lines"][0]
    assert (line["who"], line["kind"], line["source"]) == ("URI:spiffe://shop/ops/ann", "certificate", "127.0.0.1")
    assert "by-ops" in line["subject"]


def test_over_grpc_the_token_counts_before_the_certificate(
    insisting: BrokerProcess, authority: Authority, certificates: Any
) -> None:
    subscribed = DtmTopicRequest(Topic="t", URL="grpc://127.0.0.1:1/a.B/C").SerializeToString()
    reader = Shown(insisting, authority, certificates["ops"], OWN["reader"])
    assert (reader.call(), reader.call(SUBSCRIBE, subscribed)) == ("OK", "PERMISSION_DENIED")
    assert Shown(insisting, authority, certificates["nobody"], OWN["admin"]).call(SUBSCRIBE, subscribed) == "OK"
    with channel_to(insisting, authority, certificates["ops"]) as channel:
        for what, headers in STRANGERS.items():
            expected = "UNAUTHENTICATED" if headers.get("Authorization") else "OK"
            assert called(channel, NEW_GID, b"", headers) == expected, what


# --- their end -----------------------------------------------------------------------------------------------------


def test_a_certificate_that_ends_counts_no_longer_on_the_connections_that_it_has(
    authority: Authority, certificates: Any
) -> None:
    own = certificates["ops"]
    with (
        running_broker(prelude=LATER, **settings(authority)) as broker,
        RawClient(broker.url, tls=authority.trusting(*own)) as kept,
        RawClient(broker.url, tls=authority.trusting(*own)) as tokened,
    ):
        assert kept.request("GET", "/v1/whoami").json()["kind"] == "certificate"
        assert tokened.request("GET", "/v1/whoami").json()["kind"] == "certificate"
        (broker.directory / "later").touch()
        late = kept.request("GET", "/v1/whoami")
        assert (late.status, late.headers["connection"]) == (401, "close")
        by_token = tokened.request("GET", "/v1/whoami", None, OWN["reader"].headers)
        assert (by_token.json()["kind"], by_token.headers["connection"]) == ("static", "close")


def test_nobody_goes_on_with_a_certificate_that_has_ended_where_one_is_required(
    authority: Authority, certificates: Any
) -> None:
    own = certificates["ops"]
    given = settings(authority, tls_client_required=True)
    with (
        running_broker(prelude=LATER, grpc=True, **given) as broker,
        RawClient(broker.url, tls=authority.trusting(*own)) as kept,
        channel_to(broker, authority, own) as channel,
    ):
        assert kept.request("GET", "/healthz").status == 200
        assert called(channel, NEW_GID, b"", {}) == "OK"
        (broker.directory / "later").touch()
        late = kept.request("GET", "/healthz")
        assert (late.status, late.headers["connection"]) == (401, "close")
        assert late.problem().detail == "the certificate that this connection was made with has expired"
        assert called(channel, NEW_GID, b"", {}) == "UNAUTHENTICATED"
