"""A token that is revoked, or expires, while a long poll of its holder waits: nothing is handed out any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from access_tokens import ADMIN, bearing
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import Answer, RawClient

POLLS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "receive": ("POST", "/v1/groups/g/receive", {"topic": "secrets", "wait_ms": 30_000}),
    "fetch": ("GET", "/v1/topics/secrets/queues/0/messages?wait_ms=30000", None),
    "ends": ("GET", "/v1/topics?names=secrets&wait_ms=30000&position={position}", None),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(default_queues=1, max_long_polls=1, log_level="warning", **known_tokens()) as broker:
        yield broker


def ask(broker: BrokerProcess, headers: dict[str, str], method: str, path: str, content: Any = None) -> Answer:
    with RawClient(broker.url) as client:
        body = None if content is None else json.dumps(content).encode()
        return client.request(method, path, body, headers)


def admin(broker: BrokerProcess, method: str, path: str, content: Any = None) -> Any:
    answer = ask(broker, ADMIN.headers, method, path, content)
    assert answer.status < 300, answer
    return answer.json() if answer.body else None


def taken(broker: BrokerProcess) -> bool:
    """Whether somebody waits: there is one place."""
    position = ask(broker, ADMIN.headers, "GET", "/v1/topics?names=none").json()["position"]
    return ask(broker, ADMIN.headers, "GET", f"/v1/topics?names=none&wait_ms=1&position={position}").status == 429


def wait(broker: BrokerProcess, *given: Any) -> Answer:
    """A look of `taken` may have the place for a moment."""
    while (answer := ask(broker, *given)).status == 429:
        pass
    return answer


@pytest.mark.parametrize("poll", POLLS)
def test_a_poll_that_waits_gives_nothing_once_its_token_is_revoked(broker: BrokerProcess, poll: str) -> None:
    method, path, content = POLLS[poll]
    admin(broker, "PUT", "/v1/topics/secrets", {})
    made = admin(broker, "POST", "/v1/tokens", {"name": f"leaver-{poll}", "roles": ["consumer"]})["token"]
    drained = ask(broker, bearing(made), "POST", "/v1/groups/g/receive", {"topic": "secrets", "max": 1000})
    assert drained.status == 200
    topics = ask(broker, bearing(made), "GET", "/v1/topics?names=secrets").json()
    path = path.format(position=topics["position"]).replace("?wait", f"?offset={topics['topics'][0]['ends'][0]}&wait")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, broker, bearing(made), method, path, content)
        eventually(lambda: taken(broker), "a poll that waits")
        admin(broker, "DELETE", f"/v1/tokens/leaver-{poll}")
        assert not waiting.done()
        admin(broker, "POST", "/v1/messages", {"messages": [{"topic": "secrets", "value": "for others"}]})
        answer = waiting.result()
    assert answer.status == 401
    assert b"for others" not in answer.body
