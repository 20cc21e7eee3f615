"""Paths that mean the same to somebody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
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
        yield broker
        assert "Traceback" not in broker.log_text()


def status(broker: BrokerProcess, target: str, headers: dict[str, str], method: str = "GET") -> int:
    return status_of(broker.port, target, headers, method)


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
