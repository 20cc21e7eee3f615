"""Attempts to make a broker call what its operator did not allow, through every door that takes a URL.

A canary listens where nobody may go. Every attempt must be refused when it comes in, or, where that cannot be known
yet, must come to nothing: whatever happens, nobody connects to the canary.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from bypass import (
    DOORS,
    Door,
    Listener,
    dtm,
    dtm_submit,
    dtm_submit_as_grpc,
    dtm_topic,
    grpc_submit,
    grpc_topic,
    listening,
    native_call,
    native_check,
    new_gid,
    trans,
)

from brokers import BrokerProcess, running_broker
from raw_client import RawClient

FAST = {
    "check_after": "100ms",
    "check_interval": "50ms",
    "check_interval_cap": "100ms",
    "call_retry_first": "50ms",
    "call_retry_cap": "100ms",
    "log_level": "error",
}


@pytest.fixture(scope="module")
def canary() -> Iterator[Listener]:
    with listening() as made:
        yield made


@pytest.fixture(scope="module")
def allowed() -> Iterator[Listener]:
    with listening() as made:
        yield made


@pytest.fixture(scope="module")
def broker(allowed: Listener) -> Iterator[BrokerProcess]:
    urls = [f"{scheme}://127.0.0.1:{allowed.port}" for scheme in ("http", "grpc")]
    with running_broker(allowed_urls=urls, grpc=True, **FAST) as process:
        yield process


# `C` is the canary's port, `A` the allowed one: a trick is to reach the first, or the second by another way.
TRICKS = [
    "http://127.0.0.1:C/",
    "https://127.0.0.1:C/",
    "https://127.0.0.1:A/",
    "grpc://127.0.0.1:C/busi.Busi/TransIn",
    # somebody in front of the host
    "http://127.0.0.1:A@127.0.0.1:C/",
    "http://user:secret@127.0.0.1:A/",
    "http://127.0.0.1:A%40127.0.0.1:C/",
    "http://127.0.0.1:C#@127.0.0.1:A/",
    "http://127.0.0.1:C?@127.0.0.1:A/",
    "http://127.0.0.1:C\\@127.0.0.1:A/",
    "http://127.0.0.1:A\\@127.0.0.1:C/",
    "grpc://127.0.0.1:A@127.0.0.1:C/busi.Busi/TransIn",
    # the address of the machine written otherwise
    "http://localhost:C/",
    "http://localhost:A/",
    "http://localhost.:A/",
    "http://2130706433:A/",
    "http://0x7f000001:A/",
    "http://017700000001:A/",
    "http://127.1:A/",
    "http://0.0.0.0:A/",
    "http://0:A/",
    "http://127.0.0.2:A/",
    "http://[::1]:A/",
    "http://[::ffff:127.0.0.1]:A/",
    "http://[::ffff:127.0.0.1]:C/",
    "http://127.0.0.1.:A/",
    "http://\u2460\u2461\u2466.0.0.1:A/",
    "http://127\u30020.0.1:A/",
    "http://\uff11\uff12\uff17.0.0.1:C/",
    # special addresses
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1]/",
    # ports
    "http://127.0.0.1:A:C/",
    "http://127.0.0.1:C:A/",
    "http://127.0.0.1:\uff11/",
    # other schemes
    "file:///etc/passwd",
    "ftp://127.0.0.1:C/",
    "gopher://127.0.0.1:C/_GET",
    "unix:///tmp/socket",
    "unix:/tmp/socket",
    "http+unix://%2Ftmp%2Fsocket/",
    "dns:///127.0.0.1:C/busi.Busi/TransIn",
    "ipv4:127.0.0.1:C/busi.Busi/TransIn",
    "xds://127.0.0.1:C/busi.Busi/TransIn",
    "javascript:alert(1)",
    "//127.0.0.1:C/",
    "127.0.0.1:C/busi.Busi/TransIn",
    # ends of lines and what one program skips and another does not
    "http://127.0.0.1:A/\r\nHost: 127.0.0.1:C\r\n",
    "http://127.0.0.1:A/ HTTP/1.1\r\nX: y",
    "http://127.0.0.1\t:C/",
    "http://127.0.0.1:C\n/",
    " http://127.0.0.1:C/",
    "ht\ntp://127.0.0.1:C/",
    "http://127.0.0.1:A\x00.127.0.0.1:C/",
    "http:/127.0.0.1:C/",
    "http:127.0.0.1:C",
    "http:///127.0.0.1:C/",
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_no_trick_gets_through(broker: BrokerProcess, canary: Listener, allowed: Listener, door: Door) -> None:
    before = len(allowed.heard)
    taken = []
    for trick in TRICKS:
        url = trick.replace(":A", f":{allowed.port}").replace(":C", f":{canary.port}")
        if not door(broker, url):
            taken.append(trick)
    time.sleep(0.3)
    assert taken == []
    assert canary.heard == []
    assert allowed.heard[before:] == [], "a transaction that was refused was carried out in part"


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_the_doors_are_open_for_what_is_allowed(broker: BrokerProcess, allowed: Listener, door: Door) -> None:
    """Or the test above would show nothing."""
    over_grpc = door in (dtm_submit_as_grpc, grpc_submit, grpc_topic)
    url = f"127.0.0.1:{allowed.port}/busi.Busi/TransIn" if over_grpc else f"{allowed.url}/path"
    assert door(broker, url) == ""


# --- further down the road -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(canary: Listener, status: int) -> None:
    answer = f"HTTP/1.1 {status} Over there\r\nLocation: {canary.url}/\r\nContent-Length: 0\r\n\r\n".encode()
    with (
        listening(answer=answer) as sly,
        running_broker(allowed_urls=[f"http://127.0.0.1:{sly.port}"], **FAST) as broker,
    ):
        assert dtm_submit(broker, f"{sly.url}/branch") == ""
        assert native_check(broker, f"{sly.url}/check") == ""
        heard(sly, b"POST /branch", b"GET /check")
        time.sleep(0.2)
    assert canary.heard == []


def test_the_environments_proxy_is_not_asked(monkeypatch: pytest.MonkeyPatch, canary: Listener) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY", "grpc_proxy"):
        monkeypatch.setenv(name, canary.url)
    with listening() as service, running_broker(allowed_urls=[f"http://127.0.0.1:{service.port}"], **FAST) as broker:
        assert dtm_submit(broker, f"{service.url}/branch") == ""
        assert native_check(broker, f"{service.url}/check") == ""
        heard(service, b"POST /branch", b"GET /check")
    assert canary.heard == []


def heard(listener: Listener, *beginnings: bytes) -> None:
    deadline = time.monotonic() + 20
    while not all(any(one.startswith(beginning) for one in listener.heard) for beginning in beginnings):
        assert time.monotonic() < deadline, listener.heard
        time.sleep(0.02)


# Whatever name it is asked for, the name server says "this machine".
REBOUND = """
import socket
right = socket.getaddrinfo
def wrong(host, *rest, **more):
    return right("127.0.0.1" if str(host).endswith(".test") else host, *rest, **more)
socket.getaddrinfo = wrong
"""


def test_a_name_that_leads_home_reaches_nobody(canary: Listener) -> None:
    """The name is allowed by a wildcard, as all services of a zone are; where it leads is up to who runs the zone."""
    with running_broker(allowed_urls=[f"http://*.test:{canary.port}"], prelude=REBOUND, **FAST) as broker:
        url = f"http://pay.test:{canary.port}/"
        assert dtm_submit(broker, url) == ""
        assert native_check(broker, url) == ""
        assert dtm_topic(broker, url) == ""
        with RawClient(broker.url) as client:
            error = last_error(client)
        assert "allowed_urls does not name" in error
    assert canary.heard == []


def last_error(client: RawClient) -> str:
    """Of the one call that waits, once it was tried."""
    deadline = time.monotonic() + 20
    while True:
        (call,) = client.json("GET", "/v1/calls?state=waiting").json()["calls"]
        if call.get("last_error"):
            return str(call["last_error"])
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_is_not_allowed_any_more_is_not_called_although_it_was_taken(tmp_path: Any, canary: Listener) -> None:
    """The operator closes a door: what waits in the store stays outside too."""
    open_door, closed = [f"http://127.0.0.1:{canary.port}"], ["http://127.0.0.1:1"]
    topic, held = new_gid(), trans(f"{canary.url}/x", f"{canary.url}/check", timeout_to_fail=3_600)
    with running_broker(tmp_path, allowed_urls=open_door, **FAST) as broker:
        assert dtm(broker, "prepare", held) == ""
        with RawClient(broker.url) as client:
            path = f"/api/dtmsvr/subscribe?{urlencode({'topic': topic, 'url': f'{canary.url}/y'})}"
            assert client.json("GET", path).status == 200
        broker.restart(allowed_urls=closed)
        assert dtm(broker, "submit", held) == ""
        dtm(broker, "submit", trans(f"topic://{topic}"))
        native_call(broker, f"topic://{topic}")
        time.sleep(0.5)
        with RawClient(broker.url) as client:
            waiting = client.json("GET", "/v1/calls?state=waiting").json()["calls"]
        assert any(call["gid"] == held["gid"] and "may not call" in call["last_error"] for call in waiting)
    assert canary.heard == []


# --- headers ---------------------------------------------------------------------------------------------------------

BAD_HEADERS = [
    {"X-A": "b\r\nX-Injected: yes"},
    {"X-A": "b\nX-Injected: yes"},
    {"X-A\r\nX-Injected": "yes"},
    {"X-A: b\r\nX-Injected": "yes"},
    {"X-A": "b\x00"},
    {"": "x"},
    {"X A": "x"},
    {"Host": "127.0.0.1:1"},
    {"host": "evil"},
    {"Content-Length": "0"},
    {"Transfer-Encoding": "chunked"},
    {"Connection": "upgrade"},
    {"X-\u00e4": "x"},
    {"X-A": "\u2028"},
]


@pytest.mark.parametrize("headers", BAD_HEADERS, ids=repr)
def test_a_header_that_would_say_more_than_itself_is_refused(
    broker: BrokerProcess, allowed: Listener, headers: dict[str, str]
) -> None:
    marker = f"/{new_gid()}"
    url = allowed.url + marker
    assert dtm(broker, "submit", trans(url, branch_headers=headers)) != ""
    assert dtm(broker, "prepare", trans(url, url, branch_headers=headers)) != ""
    request = {"gid": new_gid(), "group": "shop", "messages": [], "calls": [{"url": url, "headers": headers}]}
    with RawClient(broker.url) as client:
        assert client.json("POST", "/v1/transactions", request).status >= 400
    time.sleep(0.05)
    assert not [one for one in allowed.heard if marker.encode() in one]


def test_a_body_cannot_be_taken_for_a_second_request(broker: BrokerProcess, allowed: Listener) -> None:
    marker = f"/{new_gid()}"
    body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    request = {
        "gid": new_gid(),
        "group": "shop",
        "messages": [],
        "calls": [{"url": allowed.url + marker, "body_base64": base64.b64encode(body).decode()}],
    }
    with RawClient(broker.url) as client:
        assert client.json("POST", "/v1/transactions", request).status < 300
        client.json("POST", f"/v1/transactions/{request['gid']}/commit", {})
    heard(allowed, f"POST {marker}".encode())
    (said,) = [one for one in allowed.heard if marker.encode() in one]
    head, _, rest = said.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert b"transfer-encoding" not in head.lower()
    assert body.startswith(rest[: len(body)])


def test_what_the_service_says_does_not_get_far(broker: BrokerProcess, canary: Listener) -> None:
    """A caller learns the beginning of an answer, so that it can be mended, and no more."""
    secret = json.dumps({"message": "x" * 300 + "SECRET"}).encode()
    answer = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s" % (len(secret), secret)
    with (
        listening(answer=answer) as service,
        running_broker(allowed_urls=[f"http://127.0.0.1:{service.port}"], **FAST) as own,
    ):
        assert dtm_submit(own, f"{service.url}/branch") == ""
        with RawClient(own.url) as client:
            error = last_error(client)
    assert error.startswith("status 500")
    assert "SECRET" not in error
    assert len(error) < 300
    assert canary.heard == []
