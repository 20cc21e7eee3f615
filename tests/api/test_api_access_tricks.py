"""Paths that mean the same to somebody else, and requests that a browser sends for a page of another site."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from access_tokens import ADMIN, OWN, token
from access_tokens import settings as known_tokens

from brokers import BrokerProcess, running_broker
from raw_client import RawClient

NARROW = token("narrow", "admin", topics=["open.*"], groups=["open.*"])


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(log_level="warning", **known_tokens(NARROW)) as broker, RawClient(broker.url) as client:
        for topic in ("secret", "open.one"):
            body = f'{{"messages": [{{"topic": "{topic}", "value": "x"}}]}}'
            assert client.request("POST", "/v1/messages", body, ADMIN.headers).status == 201
        yield broker
        assert "Traceback" not in broker.log_text()


def status(broker: BrokerProcess, target: str, headers: dict[str, str], method: str = "GET") -> int:
    """Of a request with this very target, which no library has mended."""
    lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as line:
        line.sendall("\r\n".join((*lines, "", "")).encode())
        return int(line.makefile("rb").readline().split()[1])


def tricks(path: str) -> list[str]:
    first, _, rest = path.removeprefix("/").partition("/")
    return [
        path,
        f"/{path}",
        f"//{first}//{rest}",
        f"/./{first}/{rest}",
        f"/docs/..{path}",
        f"/healthz/../{first}/{rest}",
        f"/%2e/{first}/{rest}",
        f"/docs/%2e%2e{path}",
        f"/docs%2f..{path}",
        f"{path};x",
        f"{path};/healthz",
        f"/healthz;{path}",
        f"{path}%00",
        f"{path}%3f/healthz",
        f"{path}?/healthz",
        f"{path}#/healthz",
        f"{path}/",
        f"{path}%2f",
        path.upper(),
        path.title(),
        path.replace("/v1", "/%761"),
        path.replace("/", "%2f"),
        f"http://127.0.0.1{path}",
        f"http://elsewhere.example{path}",
        f"http://elsewhere.example/healthz/..{path}",
        f"/stores/x{path}",
        f"/.door{path}",
    ]


@pytest.mark.parametrize("target", tricks("/v1/info"))
def test_no_spelling_of_a_path_does_without_a_token(broker: BrokerProcess, target: str) -> None:
    assert status(broker, target, {}) in (400, 401)


@pytest.mark.parametrize("target", tricks("/v1/topics/secret/queues/0/messages"))
def test_no_spelling_of_a_path_leads_to_another_topic(broker: BrokerProcess, target: str) -> None:
    assert status(broker, target, NARROW.headers) in (400, 403, 404)


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


# --- browsers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlocked() -> Iterator[BrokerProcess]:
    """Without access control: then a browser on this machine is all that somebody elsewhere needs."""
    with running_broker(log_level="warning") as broker:
        yield broker


def asked(broker: BrokerProcess, method: str, path: str, headers: dict[str, str]) -> int:
    with RawClient(broker.url) as client:
        return client.request(method, path, b"{}" if method == "POST" else None, headers).status


OTHER_SITES = [
    {"Origin": "http://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost:{port}"},
    {"Origin": "http://127.0.0.1:{port}.elsewhere.example"},
    {"Origin": "http://127.0.0.1:{port}@elsewhere.example"},
    {"Origin": "http://[bad"},
    {"Origin": "http://rebound.example:{port}", "Host": "rebound.example:{port}"},
    {"Sec-Fetch-Site": "same-origin", "Host": "rebound.example:{port}"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "Cross-Site"},
]


def at(broker: BrokerProcess, headers: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("{port}", str(broker.port)) for name, value in headers.items()}


@pytest.mark.parametrize("headers", OTHER_SITES)
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/messages"), ("GET", "/v1/info"), ("GET", "/metrics"), ("POST", "/api/dtmsvr/submit")],
)
def test_a_page_of_another_site_gets_nothing(
    unlocked: BrokerProcess, broker: BrokerProcess, method: str, path: str, headers: dict[str, str]
) -> None:
    assert asked(unlocked, method, path, at(unlocked, headers)) == 403
    assert asked(broker, method, path, {**at(broker, headers), **ADMIN.headers}) == 403


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://127.0.0.1:{port}"}, {"Sec-Fetch-Site": "same-origin"}])
def test_the_brokers_own_pages_and_programs_are_no_other_site(unlocked: BrokerProcess, headers: dict[str, str]) -> None:
    assert asked(unlocked, "GET", "/v1/info", at(unlocked, headers)) == 200
    assert asked(unlocked, "GET", "/v1/info", {**at(unlocked, headers), "Sec-Fetch-Site": "none"}) == 200


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_what_is_open_may_be_looked_at_from_anywhere(unlocked: BrokerProcess, headers: dict[str, str]) -> None:
    assert asked(unlocked, "GET", "/healthz", at(unlocked, headers)) == 200


SIGNS = [{"Referer": "http://127.0.0.1:{port}/"}, {"Sec-Fetch-Mode": "navigate"}, {"Origin": "http://127.0.0.1:{port}"}]


@pytest.mark.parametrize("headers", SIGNS)
@pytest.mark.parametrize("path", ["subscribe?topic=t&url=http://127.0.0.1:1/", "unsubscribe?topic=t", "resetCronTime"])
def test_no_browser_changes_anything_by_get(unlocked: BrokerProcess, path: str, headers: dict[str, str]) -> None:
    assert asked(unlocked, "GET", f"/api/dtmsvr/{path}", at(unlocked, headers)) == 403
    assert asked(unlocked, "GET", f"/api/dtmsvr/{path}", {"User-Agent": "Go-http-client/1.1"}) != 403
    assert asked(unlocked, "POST", f"/api/dtmsvr/{path}", at(unlocked, headers)) != 403
