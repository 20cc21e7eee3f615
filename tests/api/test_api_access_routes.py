"""Every route for everybody: refused or allowed as the table of routes says, on a real broker, HTTP and gRPC."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import cast

import grpc
import pytest
from access_requests import GRPC, HTTP, JSON_RPC, MESSAGE, Ask
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from access_tokens import ADMIN, OTHER, OWN, STRANGERS, revoked_token, settings
from brokers import BrokerProcess, running_broker
from raw_client import Answer, RawClient
from tallystick.api.access.table import DTM_GRPC, DTM_HTTP, NATIVE, TABLE
from tallystick.api.dtm.engine import Dtm
from tallystick.api.dtm.jsonrpc import JsonRpc
from tallystick.core.access import permissions_of

REFUSED = (401, 403)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """With a transaction, a topic, a group, a call topic and an application that are called mine."""
    with running_broker(grpc=True, check_after="1h", log_level="warning", **settings()) as broker:
        with RawClient(broker.url) as client:
            for method, path, content in (
                ("POST", "/v1/messages", {"messages": [MESSAGE]}),
                ("POST", "/v1/transactions", {"gid": "mine", "group": "mine", "messages": [MESSAGE]}),
                ("POST", "/v1/groups/mine/receive", {"topic": "mine"}),
                ("PUT", "/v1/call-topics/mine/subscribers", {"url": "http://127.0.0.1:1/x"}),
                ("POST", "/v1/ledger/mine/0", {}),
            ):
                answer = client.request(method, path, json.dumps(content), ADMIN.headers)
                assert answer.status < 300, answer
        yield broker
        assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as client:
        yield client


@pytest.fixture(scope="module")
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(broker.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def strangers(client: RawClient) -> dict[str, dict[str, str]]:
    return {**STRANGERS, "revoked": revoked_token(client)}


def ask(client: RawClient, route: str, headers: dict[str, str], role: str = "") -> Answer:
    method, asked = route.partition(" ")[0], HTTP[route]
    return client.request(method, asked.path, asked.content(role), headers)


def may(route: str, role: str) -> bool:
    needs = TABLE[route]
    return needs.whom != "some" or bool(permissions_of(role) & set(needs.permissions))


def test_there_is_a_request_for_every_route() -> None:
    assert HTTP.keys() == NATIVE.keys() | DTM_HTTP.keys()
    assert GRPC.keys() | {REFLECTION} == DTM_GRPC.keys()


@pytest.mark.parametrize("route", HTTP)
def test_who_is_not_known_gets_nowhere(client: RawClient, strangers: dict[str, dict[str, str]], route: str) -> None:
    for who, headers in strangers.items():
        answer = ask(client, route, headers)
        if TABLE[route].whom == "open":
            assert answer.status == 200, (who, answer)
        else:
            assert answer.status == 401, (who, answer)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert ("message" if route in DTM_HTTP else "detail") in answer.json()


@pytest.mark.parametrize("role", OWN)
@pytest.mark.parametrize("route", HTTP)
def test_each_role_may_what_the_table_says(client: RawClient, route: str, role: str) -> None:
    answer = ask(client, route, OWN[role].headers, role)
    if may(route, role):
        assert answer.status not in REFUSED, answer
    else:
        assert answer.status == 403, answer


@pytest.mark.parametrize("role", OTHER)
@pytest.mark.parametrize("route", HTTP)
def test_the_right_role_for_other_objects_is_not_enough(client: RawClient, route: str, role: str) -> None:
    answer, elsewhere = ask(client, route, OTHER[role].headers, role), HTTP[route].elsewhere
    if not may(route, role) or elsewhere == "refused":
        assert answer.status == 403, answer
    elif elsewhere == "hidden":
        assert answer.status not in REFUSED, answer
        assert shows_nothing(answer, HTTP[route]), answer
    else:
        assert answer.status not in REFUSED, answer


def shows_nothing(answer: Answer, asked: Ask) -> bool:
    told = answer.body.replace(b"mine is not known", b"").replace(b"gid: mine found", b"")
    return b"mine" not in told and (b"127.0.0.1:1" not in told)


# --- JSON-RPC ------------------------------------------------------------------------------------------------------


def call_rpc(client: RawClient, method: str, headers: dict[str, str]) -> tuple[int, str]:
    """The status, and what it was refused with."""
    asked = JSON_RPC[method]
    answer = client.request("POST", asked.path, asked.content(), headers)
    return answer.status, "" if answer.status != 200 else ((answer.json()["error"] or {}).get("message") or "")


def test_there_is_a_request_for_every_method() -> None:
    assert JSON_RPC.keys() == JsonRpc(cast(Dtm, None))._methods.keys()


@pytest.mark.parametrize("role", OWN)
@pytest.mark.parametrize("method", JSON_RPC)
def test_each_role_may_what_the_table_says_by_json_rpc(client: RawClient, method: str, role: str) -> None:
    status, text = call_rpc(client, method, OWN[role].headers)
    assert status == (200 if may("POST /api/json-rpc", role) else 403)
    assert "may not" not in text


@pytest.mark.parametrize("role", OTHER)
@pytest.mark.parametrize("method", JSON_RPC)
def test_the_right_role_for_other_objects_is_not_enough_by_json_rpc(client: RawClient, method: str, role: str) -> None:
    status, text = call_rpc(client, method, OTHER[role].headers)
    if not may("POST /api/json-rpc", role):
        assert status == 403
    elif JSON_RPC[method].elsewhere == "refused":
        assert f"other-{role} needs the permission `produce`" in text or "mine belongs to another group" in text
    elif JSON_RPC[method].elsewhere == "hidden":
        assert "no TransGlobal" in text
    else:
        assert "may not" not in text


# --- gRPC ----------------------------------------------------------------------------------------------------------


def call(channel: grpc.Channel, route: str, headers: dict[str, str]) -> tuple[str, str]:
    message = GRPC[route].message
    body = b"" if message is None else message.SerializeToString()
    metadata = [(name.lower(), value) for name, value in headers.items()]
    try:
        channel.unary_unary(route)(body, timeout=20, metadata=metadata, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""  # type: ignore[attr-defined]
    return "OK", ""


@pytest.mark.parametrize("route", GRPC)
def test_who_is_not_known_gets_nowhere_by_grpc(
    channel: grpc.Channel, strangers: dict[str, dict[str, str]], route: str
) -> None:
    for who, headers in strangers.items():
        assert call(channel, route, headers)[0] == "UNAUTHENTICATED", who


@pytest.mark.parametrize("role", OWN)
@pytest.mark.parametrize("route", GRPC)
def test_each_role_may_what_the_table_says_by_grpc(channel: grpc.Channel, route: str, role: str) -> None:
    code, _ = call(channel, route, OWN[role].headers)
    assert (code == "PERMISSION_DENIED") == (not may(route, role)), code
    assert code != "UNAUTHENTICATED"


@pytest.mark.parametrize("role", OTHER)
@pytest.mark.parametrize("route", GRPC)
def test_the_right_role_for_other_objects_is_not_enough_by_grpc(channel: grpc.Channel, route: str, role: str) -> None:
    code, text = call(channel, route, OTHER[role].headers)
    elsewhere = GRPC[route].elsewhere
    if not may(route, role) or elsewhere == "refused":
        assert code == "PERMISSION_DENIED", (code, text)
    elif elsewhere == "hidden":
        assert "no TransGlobal" in text, (code, text)
    else:
        assert code not in ("PERMISSION_DENIED", "UNAUTHENTICATED"), (code, text)


def test_reflection_is_for_those_who_are_known(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[no-untyped-call]
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    (found,) = stub.ServerReflectionInfo(iter(asked), metadata=[("authorization", f"Bearer {OWN['caller'].text}")])
    assert "dtmgimp.Dtm" in str(found)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.ServerReflectionInfo(iter(asked)))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_two_tokens_at_once_are_nobodys(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port)) as line:
        said = "".join(f"authorization: Bearer {one.text}\r\n" for one in (OWN["reader"], ADMIN))
        line.sendall(f"GET /v1/info HTTP/1.1\r\nhost: x\r\n{said}connection: close\r\n\r\n".encode())
        assert line.makefile("rb").read().startswith(b"HTTP/1.1 401 ")
