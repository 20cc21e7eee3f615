"""A page of another site gets nothing from a cluster, whichever broker its browser asks, by whatever path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from access_clusters import Guarded, guarded_cluster, shown
from pages import LOOKS, OTHER_SITES, from_page

from brokers import BrokerProcess
from servers import Server
from shared_stores import url_of
from tallystick.core.wire import ARROW

pytestmark = pytest.mark.postgresql
REBOUND = "rebound.example"
NEAR = {"name": "near", "addresses": ["127.0.0.1/32"], "roles": ["admin"]}
HIDDEN: dict[str, Any] = {"auth": "off", "static_tokens": []}


@pytest.fixture(scope="module", params=["open", "by address", "by token"])
def place(request: pytest.FixtureRequest, postgres: Server) -> Iterator[tuple[Guarded, dict[str, str]]]:
    """One store, two brokers, and what a browser's user has to show there."""
    how: dict[str, dict[str, Any]] = {"open": HIDDEN, "by address": {"address_grants": [NEAR]}, "by token": {}}
    url = url_of(postgres, postgres.new_database())
    with guarded_cluster(url, log_level="warning", **how[request.param]) as guarded:
        yield guarded, shown("admin") if request.param == "by token" else {}
        for broker in guarded.cluster.brokers:
            assert "Traceback" not in broker.log_text()


def requests_to(guarded: Guarded) -> list[tuple[BrokerProcess, str, str, dict[str, str]]]:
    """With and without the store's name, and those that go straight to a store."""
    asked: list[tuple[str, str, dict[str, str]]] = [
        ("GET", "/v1/info", {}),
        ("POST", "/v1/messages", {}),
        ("GET", "/v1/topics/x/queues/0/messages", {"Accept": ARROW}),
        ("DELETE", "/v1/parts/p", {}),
        ("POST", "/api/dtmsvr/submit", {}),
    ]
    return [
        (broker, method, prefix + path, headers)
        for broker in (guarded.owner, guarded.other)
        for prefix in ("", f"/stores/{guarded.store}")
        for method, path, headers in asked
    ]


def status(guarded: Guarded, broker: BrokerProcess, method: str, path: str, headers: dict[str, str]) -> int:
    return guarded.ask("", method, path, b"{}" if method == "POST" else None, by=broker, headers=headers).status


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_a_page_of_another_site_gets_nothing(place: tuple[Guarded, dict[str, str]], headers: dict[str, str]) -> None:
    guarded, credential = place
    for broker, method, path, more in requests_to(guarded):
        sent = {**from_page(headers, broker.port), **credential, **more}
        assert status(guarded, broker, method, path, sent) == 403, (broker.url, method, path)


@pytest.mark.parametrize("look", LOOKS)
def test_a_page_whose_name_was_made_to_lead_here_gets_nothing(place: tuple[Guarded, dict[str, str]], look: str) -> None:
    guarded, _ = place
    for broker, method, path, more in requests_to(guarded):
        sent = {**from_page(LOOKS[look], broker.port, REBOUND), **more}
        assert status(guarded, broker, method, path, sent) == 403, (broker.url, method, path)
        handed_on = {**sent, "Tallystick-Forwarded": "another"}
        assert status(guarded, broker, method, path, handed_on) in (401, 403), (broker.url, method, path)


@pytest.mark.parametrize("look", LOOKS)
def test_a_page_of_the_broker_that_is_asked_is_no_other_site(place: tuple[Guarded, dict[str, str]], look: str) -> None:
    """Whoever owns the store: the name by which that one is known is not the one that the browser has asked by."""
    guarded, credential = place
    for broker, method, path, more in requests_to(guarded):
        sent = {**from_page(LOOKS[look], broker.port), **credential, **more}
        assert status(guarded, broker, method, path, sent) not in (401, 403), (broker.url, method, path)


@pytest.mark.parametrize("look", LOOKS)
def test_no_browser_changes_anything_by_get_and_none_gets_to_a_door(
    place: tuple[Guarded, dict[str, str]], look: str
) -> None:
    guarded, credential = place
    inside = f"/stores/{guarded.store}"
    for broker in (guarded.owner, guarded.other):
        sent = {**from_page(LOOKS[look], broker.port), **credential}
        for prefix in ("", inside):
            assert status(guarded, broker, "GET", f"{prefix}/api/dtmsvr/resetCronTime", sent) == 403
        assert status(guarded, broker, "POST", f"{inside}/.door/info", sent) == 403
        handed_on = {**sent, "Tallystick-Forwarded": "another"}
        assert status(guarded, broker, "POST", f"{inside}/.door/info", handed_on) in (401, 403)
