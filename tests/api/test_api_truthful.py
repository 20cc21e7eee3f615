"""The published description is true: what is asked of every route and what it answers is held against it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest
from exchanges import Exchange, all_of_them, routes_of
from openapi_core import Config, OpenAPI
from openapi_core.exceptions import OpenAPIError
from openapi_core.testing import MockRequest, MockResponse

from brokers import running_broker
from raw_client import RawClient
from tallystick.api.http.route import Route
from tallystick.api.http.table import ROUTES
from tallystick.core.wire import ARROW, MSGPACK, PROBLEM

HOST = "http://127.0.0.1"


def as_json(node: Any) -> Any:
    """What msgpack holds, as the schemas have it: bytes in base64, names as text."""
    if isinstance(node, bytes):
        return base64.b64encode(node).decode()
    if isinstance(node, dict):
        return {str(name): as_json(value) for name, value in node.items()}
    return [as_json(one) for one in node] if isinstance(node, list) else node


READ = {
    PROBLEM: json.loads,
    MSGPACK: lambda body: as_json(msgspec.msgpack.decode(body)),
    ARROW: bytes,
    "text/plain": lambda body, **_: body.decode(),
    "text/html": lambda body, **_: body.decode(),
}


class Judge:
    """A validator of others' making. A field that the description does not have is a lie, too."""

    def __init__(self, document: dict[str, Any], well_formed: bool = False) -> None:
        strict = Config(extra_media_type_deserializers=READ, additional_properties_default_policy="forbid")
        if well_formed:  # known of the true one, and slow to find out
            strict.spec_validator_cls = None
        self._openapi = OpenAPI.from_dict(document, config=strict)

    def judge(self, said: Exchange) -> None:
        path, _, query = said.path.partition("?")
        request = MockRequest(
            HOST,
            said.method.lower(),
            path,
            args=dict(parse_qsl(query)),
            headers=said.headers,
            data=said.body,
            content_type=said.headers["Content-Type"],
        )
        answer = said.answer
        if answer.status < 300:
            self._openapi.validate_request(request)
        media = answer.headers.get("content-type", "")
        self._openapi.validate_response(request, MockResponse(answer.body, answer.status, answer.headers, media))

    def refuses(self, said: Exchange) -> bool:
        try:
            self.judge(said)
        except OpenAPIError:
            return True
        return False


@pytest.fixture(scope="module")
def said() -> Iterator[list[Exchange]]:
    with running_broker(call_retry_first="50ms", log_level="warning") as broker, RawClient(broker.url) as client:
        yield all_of_them(client)


@pytest.fixture(scope="module")
def document(said: list[Exchange]) -> dict[str, Any]:
    (published,) = (one.answer.json() for one in said if one.path == "/openapi.json")
    assert isinstance(published, dict)
    return published


def test_every_route_is_spoken_to(said: list[Exchange]) -> None:
    assert set(routes_of(said)) == {(route.method, route.path) for route in ROUTES}


def test_every_form_of_an_answer_is_seen(said: list[Exchange]) -> None:
    for route in ROUTES:
        seen = [one.answer for one in said if one.route is route]
        assert {route.status, *route.also} - {503} <= {one.status for one in seen}, route.path
        if len(set(map(str, route.gives.values()))) > 1:
            assert set(route.gives) <= {one.headers["content-type"] for one in seen}, route.path


def test_what_is_said_is_what_is_described(said: list[Exchange], document: dict[str, Any]) -> None:
    judge = Judge(document)
    for one in said:
        try:
            judge.judge(one)
        except OpenAPIError as error:
            cause = error.__cause__
            raise AssertionError(f"{one.method} {one.path} {str(one.answer)[:300]}: {error!r} {cause!r}") from error


# --- the judge itself is tried -------------------------------------------------------------------------------------


def first(said: list[Exchange], method: str, path: str) -> Exchange:
    return next(one for one in said if one.method == method and one.path.startswith(path) and one.answer.status < 300)


def lie(document: dict[str, Any], path: str, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A copy to be spoilt, and what it says of one operation; the others are not in it."""
    spoilt = copy.deepcopy({**document, "paths": {path: document["paths"][path]}})
    return spoilt, spoilt["paths"][path][method]


def test_a_document_that_lies_about_a_body_is_caught(said: list[Exchange], document: dict[str, Any]) -> None:
    one = first(said, "GET", "/v1/topics/made/queues/0/messages?offset")
    spoilt, operation = lie(document, "/v1/topics/{topic}/queues/{queue}/messages", "get")
    content = operation["responses"]["200"]["content"]
    content["application/json"] = content[MSGPACK]
    assert Judge(spoilt, well_formed=True).refuses(one)
    spoilt, _ = lie(document, "/v1/info", "get")
    del spoilt["components"]["schemas"]["BrokerInfo"]["properties"]["version"]
    assert Judge(spoilt, well_formed=True).refuses(first(said, "GET", "/v1/info"))


def test_a_document_that_lies_about_a_status_is_caught(said: list[Exchange], document: dict[str, Any]) -> None:
    one = first(said, "POST", "/v1/messages")
    spoilt, operation = lie(document, "/v1/messages", "post")
    operation["responses"]["200"] = operation["responses"].pop("201")
    assert Judge(spoilt, well_formed=True).refuses(one)


def test_a_document_that_lies_about_a_media_type_is_caught(said: list[Exchange], document: dict[str, Any]) -> None:
    spoilt, operation = lie(document, "/v1/tables/{table}", "get")
    operation["responses"]["200"]["content"] = {"application/json": {}}
    assert Judge(spoilt, well_formed=True).refuses(first(said, "GET", "/v1/tables/transactions?"))


def test_a_document_that_lies_about_a_request_is_caught(said: list[Exchange], document: dict[str, Any]) -> None:
    one = first(said, "POST", "/v1/parts/part")
    spoilt, operation = lie(document, "/v1/parts/{part}", "post")
    operation["requestBody"]["content"] = {ARROW: {}}
    assert Judge(spoilt, well_formed=True).refuses(one)
    spoilt, operation = lie(document, "/v1/topics/{topic}/offsets", "get")
    operation["parameters"][1]["schema"] = {"type": "integer", "minimum": 1}
    assert Judge(spoilt, well_formed=True).refuses(first(said, "GET", "/v1/topics/made/offsets"))


# --- parameters that nobody knows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_unknown_parameter_is_refused_by_its_name(client: RawClient, route: Route) -> None:
    path = route.path.replace("{queue:int}", "0").replace("{version:int}", "0").replace("{", "").replace("}", "")
    answer = client.request(route.method, f"{path}?limt=5")
    assert (answer.status, answer.problem().field) == (400, "limt")
    assert all(name in answer.problem().detail for name in (route.query.__struct_fields__ if route.query else ()))
