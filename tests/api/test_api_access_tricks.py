"""Paths that mean the same to somebody else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from path_tricks import tricks

from access_tokens import ADMIN, OWN, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from spoken_targets import status_of

NARROW = token("narrow", "admin", topics=["open.*"], groups=["open.*"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(log_level="warning", **known_tokens(NARROW)) as broker, RawClient(broker.url) as client:
        for topic in ("secret", "open.one"):
            body = f'{{"messages": [{{"topic": "{topic}", "value": "x"}}]}}'
            assert client.request("POST", "/v1/messages", body, ADMIN.headers).status == 201
        subscriber = b'{"url": "http://127.0.0.1:1/x"}'
        assert client.request("PUT", "/v1/call-topics/secret/subscribers", subscriber, ADMIN.headers).status == 200
        yield broker
        assert "Traceback" not in broker.log_text()


def status(broker: BrokerProcess, target: str, headers: dict[str, str], method: str = "GET") -> int:
    return status_of(broker.port, target, headers, method)


PATHS = [
    ("GET", "/v1/info"),
    ("POST", "/v1/messages"),
    ("DELETE", "/v1/topics/secret"),
    ("GET", "/api/dtmsvr/all"),
    ("POST", "/api/dtmsvr/submit"),
    ("DELETE", "/api/dtmsvr/topic/secret"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_spelling_of_a_path_does_without_a_token(broker: BrokerProcess, method: str, path: str) -> None:
    found = {target: status(broker, target, {}, method) for target in tricks(path)}
    assert {target: one for target, one in found.items() if one not in (400, 401)} == {}


@pytest.mark.parametrize("target", tricks("/v1/topics/secret/queues/0/messages"))
def test_no_spelling_of_a_path_leads_to_another_topic(broker: BrokerProcess, target: str) -> None:
    assert status(broker, target, NARROW.headers) in (400, 403, 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/topics/secret/trim"),
        ("PUT", "/v1/topics/secret"),
        ("DELETE", "/v1/topics/secret"),
        ("PUT", "/v1/call-topics/secret/subscribers"),
        ("DELETE", "/v1/call-topics/secret"),
        ("DELETE", "/api/dtmsvr/topic/secret"),
        ("DELETE", "/api/dtmsvr/topic/open.one/../secret"),
        ("DELETE", "/api/dtmsvr/topic/open.one%2f..%2fsecret"),
        ("DELETE", "/api/dtmsvr/topic//secret"),
    ],
)
def test_no_spelling_of_a_path_changes_another_topic(broker: BrokerProcess, method: str, path: str) -> None:
    """What comes after `topic/` is a name as it stands, with all slashes: there is none like it."""
    found = {target: status(broker, target, NARROW.headers, method) for target in tricks(path)}
    assert {target: one for target, one in found.items() if one < 400} == {}
    with RawClient(broker.url) as client:
        for there in ("/v1/topics/secret", "/v1/call-topics/secret"):
            assert client.request("GET", there, None, ADMIN.headers).status == 200


def test_the_plain_paths_change_what_they_name(broker: BrokerProcess) -> None:
    """A negative control for the paths above."""
    with RawClient(broker.url) as client:
        subscriber = b'{"url": "http://127.0.0.1:1/x"}'
        for topic in ("open.a", "open.b"):
            path = f"/v1/call-topics/{topic}/subscribers"
            assert client.request("PUT", path, subscriber, ADMIN.headers).status == 200
    assert status(broker, "/api/dtmsvr/topic/open.a", NARROW.headers, "DELETE") == 200
    assert status(broker, "/v1/call-topics/open.b", NARROW.headers, "DELETE") == 204
    assert status(broker, "/v1/topics/open.c", NARROW.headers, "PUT") == 200
    assert status(broker, "/v1/topics/open.c", NARROW.headers, "DELETE") == 204


@pytest.mark.parametrize(
    "name",
    ["open.one/../secret", "open.one%2f..%2fsecret", "open.one;secret", "open.x%0asecret", "OPEN.one", "open.%2a"],
)
def test_a_name_that_begins_rightly_is_not_another_one(broker: BrokerProcess, name: str) -> None:
    assert status(broker, f"/v1/topics/{name}", NARROW.headers) in (400, 403, 404)


@pytest.mark.parametrize("path", ["topics/{}", "groups/{}", "ledger/{}", "transactions/{}", "call-topics/{}"])
def test_what_is_no_name_is_told_so_and_not_looked_for_in_grants(broker: BrokerProcess, path: str) -> None:
    for name in ("open." + "x" * 200, "-" * 5_000, "open.a%20b"):
        assert status(broker, f"/v1/{path.format(name)}", NARROW.headers) == 400


def test_the_plain_path_and_the_absolute_form_are_for_those_who_may(broker: BrokerProcess) -> None:
    """A negative control: it is not the spelling alone that is refused above."""
    path = "/v1/topics/open.one"
    assert status(broker, path, NARROW.headers) == 200
    assert status(broker, f"http://elsewhere.example{path}", NARROW.headers) == 200
    assert status(broker, path, OWN["caller"].headers) == 403


@pytest.mark.parametrize("method", ["get", "Get", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
def test_another_method_is_no_way_in(broker: BrokerProcess, method: str) -> None:
    assert status(broker, "/v1/info", {}, method) in (400, 401)
    assert status(broker, "/v1/info", {"X-HTTP-Method-Override": "GET"}, method) in (400, 401)


@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["in one piece", "in two"])
def test_what_comes_behind_a_body_says_nothing_of_who_sends_it(broker: BrokerProcess, pause: float) -> None:
    """Trailers stand where proxies do not look; and whether they were there in time would be up to the network."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    body = b'{"messages": [{"topic": "open.one", "value": 1}]}'
    known = f"Authorization: {ADMIN.headers['Authorization']}\r\n".encode()
    found = []
    for in_head, behind in ((b"", known), (known, b"Authorization: Bearer x\r\nOrigin: http://elsewhere.example\r\n")):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as connection:
            connection.sendall(head + in_head + b"\r\n")
            time.sleep(pause)
            connection.sendall(b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, behind))
            found.append(connection.recv(65_536)[9:12])
    assert found == [b"401", b"201"]
