"""Requests that a browser sends for a page that somebody else has written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pages import LOOKS, OTHER_SITES, from_page

from access_tokens import ADMIN
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from raw_client import RawClient

REBOUND = "rebound.example"
NEAR = {"name": "near", "addresses": ["127.0.0.1/32"], "roles": ["admin"]}
ROUTES = [("POST", "/v1/messages"), ("GET", "/v1/info"), ("GET", "/metrics"), ("POST", "/api/dtmsvr/submit")]


@pytest.fixture(scope="module")
def guarded() -> Iterator[BrokerProcess]:
    with running_broker(log_level="warning", **known_tokens()) as broker:
        yield broker
        assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="module")
def unlocked() -> Iterator[BrokerProcess]:
    """Without access control: then a browser on this machine is all that somebody elsewhere needs."""
    with running_broker(log_level="warning", browser_hosts=["tallystick.internal"]) as broker:
        yield broker
        assert "Traceback" not in broker.log_text()


@pytest.fixture(scope="module")
def granted() -> Iterator[BrokerProcess]:
    """Where an address is enough to be known."""
    with running_broker(log_level="warning", address_grants=[NEAR], **known_tokens()) as broker:
        yield broker


def asked(broker: BrokerProcess, method: str, path: str, headers: dict[str, str]) -> int:
    with RawClient(broker.url) as client:
        return client.request(method, path, b"{}" if method == "POST" else None, headers).status


@pytest.mark.parametrize("headers", OTHER_SITES)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_page_of_another_site_gets_nothing(
    unlocked: BrokerProcess, guarded: BrokerProcess, method: str, path: str, headers: dict[str, str]
) -> None:
    assert asked(unlocked, method, path, from_page(headers, unlocked.port)) == 403
    assert asked(guarded, method, path, {**from_page(headers, guarded.port), **ADMIN.headers}) == 403


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_page_whose_name_was_made_to_lead_here_gets_nothing(
    unlocked: BrokerProcess, granted: BrokerProcess, guarded: BrokerProcess, method: str, path: str, look: str
) -> None:
    for broker in (unlocked, granted, guarded):
        headers = from_page(LOOKS[look], broker.port, REBOUND)
        assert asked(broker, method, path, headers) == 403
        assert asked(broker, method, path, {**headers, "Authorization": ""}) == 403
        # What a script makes up is no credential.
        assert asked(broker, method, path, {**headers, "Authorization": "Bearer x"}) in (401, 403)
    made_up = {**from_page(LOOKS[look], unlocked.port, REBOUND), "Authorization": "Bearer x"}
    assert asked(unlocked, method, path, made_up) == 403


@pytest.mark.parametrize("look", LOOKS)
def test_whoever_has_a_token_may_ask_by_any_name(guarded: BrokerProcess, look: str) -> None:
    headers = from_page(LOOKS[look], guarded.port, REBOUND)
    assert asked(guarded, "GET", "/v1/info", {**headers, **ADMIN.headers}) == 200


@pytest.mark.parametrize("look", ["none", *LOOKS])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "tallystick.internal", "Tallystick.Internal"])
def test_pages_that_were_loaded_by_a_name_of_ours_are_no_other_site(
    unlocked: BrokerProcess, host: str, look: str
) -> None:
    headers = from_page(LOOKS.get(look, {}), unlocked.port, host)
    assert asked(unlocked, "GET", "/v1/info", headers) == 200
    assert asked(unlocked, "GET", "/v1/info", {**headers, "Sec-Fetch-Site": "none"}) == 200


@pytest.mark.parametrize(
    "host",
    ["x.tallystick.internal", "tallystick.internal.rebound.example", "127.0.0.1.rebound.example", "localhost.example"],
)
def test_a_name_that_only_looks_like_one_of_ours_is_another(unlocked: BrokerProcess, host: str) -> None:
    for headers in LOOKS.values():
        assert asked(unlocked, "GET", "/v1/info", from_page(headers, unlocked.port, host)) == 403


def test_a_program_may_ask_by_any_name(unlocked: BrokerProcess, granted: BrokerProcess) -> None:
    """It is the look of a browser that is refused above, and not the name alone."""
    for broker in (unlocked, granted):
        for headers in ({}, {"User-Agent": "Go-http-client/1.1"}, {"User-Agent": "python-requests/2", "Accept": "*/*"}):
            assert asked(broker, "GET", "/v1/info", from_page(headers, broker.port, "broker.internal")) == 200


@pytest.mark.parametrize("headers", [*OTHER_SITES, *LOOKS.values()])
def test_what_is_open_may_be_looked_at_from_anywhere(unlocked: BrokerProcess, headers: dict[str, str]) -> None:
    assert asked(unlocked, "GET", "/healthz", from_page(headers, unlocked.port, REBOUND)) == 200


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", ["subscribe?topic=t&url=http://127.0.0.1:1/", "unsubscribe?topic=t", "resetCronTime"])
def test_no_browser_changes_anything_by_get(
    unlocked: BrokerProcess, guarded: BrokerProcess, path: str, look: str
) -> None:
    headers = from_page(LOOKS[look], unlocked.port)
    assert asked(unlocked, "GET", f"/api/dtmsvr/{path}", headers) == 403
    assert asked(unlocked, "GET", f"/api/dtmsvr/{path}", {"User-Agent": "Go-http-client/1.1"}) != 403
    assert asked(unlocked, "POST", f"/api/dtmsvr/{path}", headers) != 403
    shown = {**from_page(LOOKS[look], guarded.port), **ADMIN.headers}
    assert asked(guarded, "GET", f"/api/dtmsvr/{path}", shown) == 403
