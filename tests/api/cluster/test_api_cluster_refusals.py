"""Whoever is refused by a broker that hands requests on is told of there: in its log, and in its numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from access_clusters import Guarded, guarded_cluster, shown

from access_tokens import UNKNOWN, bearing
from servers import Server
from shared_stores import url_of

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def guarded(postgres: Server) -> Iterator[Guarded]:
    with guarded_cluster(url_of(postgres, postgres.new_database())) as made:
        yield made


def told(guarded: Guarded) -> list[str]:
    lines = [line for line in guarded.other.log_text().splitlines() if "refused with" in line]
    return [line.partition("refused with ")[2].removesuffix(" [tallystick.api]") for line in lines]


def counted(guarded: Guarded, route: str, status: int) -> float:
    numbers = guarded.ask("reader", "GET", "/metrics").body.decode()
    named = f'tallystick_cluster_requests_total{{route="{route}",status="{status}"}} '
    return sum(float(line.removeprefix(named)) for line in numbers.splitlines() if line.startswith(named))


REFUSED = {
    "a token that nobody knows": ("127.0.0.11", "GET", "/v1/topics/x", bearing(UNKNOWN), 401, ""),
    "a seal that no broker made": ("127.0.0.12", "GET", "/v1/topics/x", {"Tallystick-Caller": "v1.x.y"}, 401, ""),
    "a word that no broker says": ("127.0.0.13", "GET", "/v1/topics", {"Tallystick-Forwarded": "x"}, 401, ""),
    "somebody without the permission": ("127.0.0.14", "DELETE", "/v1/topics/x", shown("reader"), 403, "reader"),
    "a page of another site": ("127.0.0.15", "GET", "/v1/topics/x", {"Origin": "http://x.example"}, 403, ""),
    "somebody at a store's own door": ("127.0.0.16", "POST", "/.door/info", shown("admin"), 403, "admin"),
}
ROUTES = {"/v1/topics/x": "/v1/topics/{topic}", "/.door/info": "/.door/..."}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_before_a_request_is_handed_on_is_told_and_counted(guarded: Guarded, what: str) -> None:
    source, method, path, headers, status, who = REFUSED[what]
    route = ROUTES.get(path, path)
    before = counted(guarded, route, status)
    inside = f"/stores/{guarded.store}{path}"
    assert guarded.ask("", method, inside, headers=headers, source=source).status == status
    assert counted(guarded, route, status) == before + 1
    named = "/.door/..." if path == "/.door/info" else f"{method} {route}"
    by = f", by {who!r}" if who else ""
    assert [line for line in told(guarded) if source in line] == [f"{status}: {named}, from {source}{by}"]
