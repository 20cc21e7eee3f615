"""The API describes itself: OpenAPI, the page for people, metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from brokers import running_broker
from raw_client import RawClient
from tallystick.api.http.table import ROUTES
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, Commit, Prepare, PreparePart, Rollback, Send

# --- OpenAPI -------------------------------------------------------------------------------------------------------


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_the_description_has_the_form_of_openapi(client: RawClient) -> None:
    document = client.json("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert set(document["info"]) >= {"title", "version"}
    names = []
    for path, methods in document["paths"].items():
        assert path.startswith("/")
        for method, operation in methods.items():
            assert method in ("get", "post", "put", "delete")
            names.append(operation["operationId"])
            assert operation["summary"]
            assert operation["responses"]["default"]["content"]["application/problem+json"]
            in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert in_path == set(re.findall(r"\{(\w+)\}", path))
            assert all(one["required"] for one in operation["parameters"] if one["in"] == "path")
    assert len(names) == len(set(names)), "operation ids must differ"
    for reference in references(document):
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step.replace("~1", "/").replace("~0", "~")]


def test_the_description_lists_every_route_and_no_other(client: RawClient) -> None:
    document = client.json("GET", "/openapi.json").json()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, re.sub(r":\w+\}", "}", route.path)) for route in ROUTES}
    for method, path in listed:
        answer = client.request(
            method, re.sub(r"\{(queue|version)\}", "0", re.sub(r"\{(?!queue|version)\w+\}", "nobody", path))
        )
        if answer.status == 404:
            assert "there is nothing at" not in answer.problem().detail
        assert answer.status != 405


def test_every_request_body_is_described(client: RawClient) -> None:
    document = client.json("GET", "/openapi.json").json()
    for route in ROUTES:
        if route.method in ("POST", "PUT") and not route.path.endswith(("/resume", "/stop", "/hurry")):
            path = re.sub(r":\w+\}", "}", route.path)
            assert "requestBody" in document["paths"][path][route.method.lower()], path


# --- the page for people ---------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_shows_every_route_and_needs_nothing_from_elsewhere(client: RawClient) -> None:
    answer = client.request("GET", "/docs")
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/html")
    page = _Page()
    page.feed(answer.body.decode())
    text = " ".join(page.text)
    for route in ROUTES:
        assert re.sub(r":\w+\}", "}", route.path) in text
        assert route.summary in text
    links = [attrs[name] for _, attrs in page.tags for name in ("src", "href", "action", "data") if name in attrs]
    assert all(link is not None and link.startswith("/") and not link.startswith("//") for link in links), links
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "img", "link", "object")]
    assert b"@import" not in answer.body
    assert b"url(" not in answer.body


# --- metrics ---------------------------------------------------------------------------------------------------------

WANTED = {
    "tallystick_prepared",
    "tallystick_committed",
    "tallystick_rolled_back",
    "tallystick_conflict",
    "tallystick_parked",
    "tallystick_checks_sent",
    "tallystick_checks_answered",
    "tallystick_checks_failed",
    "tallystick_check_seconds",
    "tallystick_pending",
    "tallystick_pending_oldest_seconds",
    "tallystick_leases",
    "tallystick_lag",
    "tallystick_store_failed",
    "tallystick_http_requests",
}


def counted(name: str) -> bool:
    return not name.endswith("_created")


def metrics(client: RawClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    text = client.request("GET", "/metrics").body.decode()
    return {
        family.name: {
            tuple(sorted(one.labels.items())): one.value for one in family.samples if "_created" not in one.name
        }
        for family in text_string_to_metric_families(text)
    }


def test_metrics_follow_what_happens(client: RawClient) -> None:
    before = metrics(client)
    assert before.keys() >= WANTED
    for number in range(3):
        client.do(Prepare(f"m{number}", "shop", [OutgoingMessage("metrics", b"x")], Check(after_ms=0)))
    client.do(Commit("m0"))
    client.do(Rollback("m1"))
    client.batch(Commit("m1"))
    client.do(PreparePart("mp", [OutgoingMessage("metrics", b"x")]))
    asked = {one.gid for one in client.poll_checks("shop", wait_ms=5_000)}
    assert asked == {"m2"}
    client.receive("g", "metrics")
    time.sleep(1.1)
    after = metrics(client)

    def grown(name: str) -> float:
        return sum(after[name].values()) - sum(before[name].values())

    assert (grown("tallystick_prepared"), grown("tallystick_committed")) == (3, 1)
    assert (grown("tallystick_rolled_back"), grown("tallystick_conflict")) == (1, 1)
    assert after["tallystick_pending"] == {(): 1}
    assert after["tallystick_parts"] == {(): 1}
    assert after["tallystick_leases"] == {(): 1}
    assert after["tallystick_pending_oldest_seconds"][()] > 0
    assert after["tallystick_lag"][(("group", "g"), ("topic", "metrics"))] == 1
    assert grown("tallystick_checks_sent") == 1
    client.do(AnswerChecks({"m2": "committed"}))
    assert metrics(client)["tallystick_checks_answered"][(("answer", "committed"), ("via", "group"))] == 1


def test_labels_do_not_grow_with_names(client: RawClient) -> None:
    def series() -> int:
        return sum(len(samples) for name, samples in metrics(client).items() if name != "tallystick_lag")

    client.do(Send([OutgoingMessage("t", b"x")]))
    client.json("GET", "/v1/topics/first")
    client.json("GET", "/v1/transactions/first")
    client.json("GET", "/nothing/first")
    client.batch(Ack("g", ["t/0/0/1"]))
    before = series()
    for number in range(60):
        client.json("GET", f"/v1/topics/t-{number}")
        client.json("GET", f"/v1/transactions/t-{number}")
        client.json("GET", f"/nothing/{number}")
        client.do(Prepare(f"labels-{number}", f"group-{number}", [OutgoingMessage(f"topic-{number}", b"x")]))
        client.batch(Ack(f"group-{number}", ["t/0/0/1"]))
    # What a check or a sweep meanwhile counts for the first time is one more, and not one a name.
    assert series() - before < 10


def test_the_lag_of_many_groups_is_cut_off_at_a_bound() -> None:
    with running_broker(log_level="warning") as broker, RawClient(broker.url) as client:
        client.do(Send([OutgoingMessage("t", b"x")]))
        for number in range(210):
            client.receive(f"group-{number}", "t")
        time.sleep(1.1)
        assert len(metrics(client)["tallystick_lag"]) == 200
