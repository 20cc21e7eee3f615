"""JWTs at a running broker, over HTTP and gRPC: its keys are in a file, or at the provider's address."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from identity_provider import AUDIENCE, GRANTS, ISSUER, Provider, ec_key, jwks, provider, public, rsa_key, token

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import Answer, RawClient
from tallystick.api.dtm.grpc.messages import DtmTopicRequest

NEW_GID, SUBSCRIBE = "/dtmgimp.Dtm/NewGid", "/dtmgimp.Dtm/Subscribe"
ADMINS = {"claim": "scope", "value": "tallystick:admin", "roles": ["admin"]}
KEYS = jwks(public(rsa_key("one"), "one"))
# The address of the keys may be asked again at once, for a key that is not known.
ASK_AT_ONCE = """
import tallystick.broker.access.jwks as keys

keys.LEAST_BETWEEN_MS = 50
"""


def settings(where: str | Path, **more: Any) -> dict[str, Any]:
    return {
        "auth": "tokens",
        "jwt_issuer": ISSUER,
        "jwt_audience": AUDIENCE,
        "jwt_jwks": str(where),
        "jwt_grants": [*GRANTS, ADMINS],
        **more,
    }


@pytest.fixture(scope="module", params=["file", "address"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with provider() as served:
        served.serves(KEYS)
        file = tmp_path_factory.mktemp("keys") / "jwks.json"
        file.write_text(KEYS)
        where = file if request.param == "file" else served.url
        with running_broker(grpc=True, **settings(where)) as running:
            yield running


def ask(broker: BrokerProcess, text: str, method: str, path: str, content: Any = None) -> Answer:
    body = None if content is None else json.dumps(content).encode()
    headers = {"Authorization": f"Bearer {text}", "Content-Type": "application/json"}
    with RawClient(broker.url) as client:
        return client.request(method, path, body, headers)


def send(broker: BrokerProcess, text: str, topic: str) -> Answer:
    return ask(broker, text, "POST", "/v1/messages", {"messages": [{"topic": topic, "value": "x"}]})


def call(broker: BrokerProcess, text: str, route: str = NEW_GID, message: bytes = b"") -> str:
    with grpc.insecure_channel(broker.grpc) as channel:
        try:
            channel.unary_unary(route)(message, timeout=60, metadata=[("authorization", f"Bearer {text}")])
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def test_claims_say_what_somebody_may_do_over_http(broker: BrokerProcess) -> None:
    writer = token(rsa_key("one"), scope="openid orders:write")
    assert [send(broker, writer, topic).status for topic in ("orders.new", "stock.new")] == [201, 403]
    assert ask(broker, writer, "GET", "/v1/transactions").status == 403
    operator = token(rsa_key("one"), realm_access={"roles": ["ops"]})
    assert ask(broker, operator, "GET", "/v1/transactions").status == 200
    assert send(broker, operator, "orders.new").status == 403
    assert send(broker, token(rsa_key("one")), "orders.new").status == 403  # known, and may do nothing


def test_claims_say_what_somebody_may_do_over_grpc(broker: BrokerProcess) -> None:
    subscribed = DtmTopicRequest(Topic="jwt", URL="grpc://127.0.0.1:1/a.B/C").SerializeToString()
    writer, admin = (token(rsa_key("one"), scope=scope) for scope in ("orders:write", "tallystick:admin"))
    assert [call(broker, text, SUBSCRIBE, subscribed) for text in (writer, admin)] == ["PERMISSION_DENIED", "OK"]
    assert call(broker, writer) == "OK"


@pytest.mark.parametrize(
    ("key", "kid", "claims", "why"),
    [
        ("one", "one", {"exp": int(time.time()) - 3_600}, "expired"),
        ("one", "one", {"aud": "another"}, "is not for this broker"),
        ("one", "one", {"iss": "https://other.example"}, "is of another issuer"),
        ("two", "two", {}, "not known here"),
        ("two", "one", {}, "was not signed with the key"),
    ],
    ids=["expired", "another audience", "another issuer", "unknown key", "signed with another key"],
)
def test_what_is_not_right_is_refused_on_both_ports(
    broker: BrokerProcess, key: str, kid: str, claims: dict[str, Any], why: str
) -> None:
    text = token(rsa_key(key), kid, scope="tallystick:admin", **claims)
    refused = ask(broker, text, "GET", "/v1/whoami")
    assert (refused.status, refused.problem().code) == (401, "unauthenticated")
    assert why in refused.problem().detail
    assert send(broker, text, "orders.new").status == 401
    assert call(broker, text) == "UNAUTHENTICATED"
    assert text.rpartition(".")[0] not in broker.log_text()


def test_whoami_and_the_audit_log_have_the_name_that_the_provider_gives(broker: BrokerProcess) -> None:
    admin = token(rsa_key("one"), scope="tallystick:admin", sub="ann")
    told = ask(broker, admin, "GET", "/v1/whoami").json()
    assert (told["name"], told["kind"], told["source"]) == ("ann", "jwt", "127.0.0.1")
    assert ask(broker, admin, "PUT", "/v1/topics/made", {"queues": 1}).status == 200
    assert ask(broker, admin, "DELETE", "/v1/topics/made").status == 204
    line = ask(broker, admin, "GET", "/v1/audit?action=delete_topic").json()["lines"][0]
    assert (line["who"], line["kind"], line["source"], line["subject"]) == ("ann", "jwt", "127.0.0.1", "made")


# --- keys change -----------------------------------------------------------------------------------------------------


def both(broker: BrokerProcess, text: str) -> tuple[int, str]:
    """What is answered over HTTP and over gRPC."""
    return ask(broker, text, "GET", "/v1/whoami").status, call(broker, text)


@pytest.mark.parametrize("kind", ["file", "address"])
def test_keys_are_exchanged_while_the_broker_runs(tmp_path: Path, kind: str) -> None:
    old, new = token(rsa_key("one")), token(ec_key("new"), "new", "ES256")
    file = tmp_path / "jwks.json"

    def publish(served: Provider, keys: str) -> None:
        served.serves(keys)
        file.with_suffix(".next").write_text(keys)
        file.with_suffix(".next").replace(file)

    with provider() as served:
        publish(served, KEYS)
        where = file if kind == "file" else served.url
        with running_broker(grpc=True, prelude=ASK_AT_ONCE, **settings(where)) as broker:
            assert both(broker, old) == (200, "OK")
            assert both(broker, new) == (401, "UNAUTHENTICATED")
            publish(served, jwks(public(ec_key("new"), "new")))
            eventually(lambda: both(broker, new) == (200, "OK"), "the new key")
            assert both(broker, old) == (401, "UNAUTHENTICATED")
