"""The table of routes has all that is mounted, and nothing else; what it does not have is refused."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from access_tokens import ADMIN, settings
from grpc_reflection.v1alpha import reflection_pb2

from tallystick.api.access.table import DOOR_WAYS, DTM_GRPC, DTM_HTTP, NATIVE, NOTHING, PEERS, TABLE
from tallystick.api.cluster.asking import CALLER_OF, DOOR, METHODS, DoorApi
from tallystick.api.dtm.grpc.messages import SERVICE
from tallystick.api.dtm.http import DtmHttp
from tallystick.api.http.native import NativeApi
from tallystick.api.http.table import ROUTES
from tallystick.api.store_api import StoreApi
from tallystick.broker.broker import Broker
from tallystick.broker.config import Config
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import PERMISSIONS


@contextlib.asynccontextmanager
async def guarded_broker() -> AsyncIterator[Broker]:
    config = msgspec.convert({"store": "memory", **settings()}, Config)
    broker = Broker(config)
    try:
        yield broker
    finally:
        await broker.close()


def native_routes() -> set[str]:
    return {f"{route.method} {route.path}" for route in ROUTES}


def dtm_routes(door: BrokerDoor) -> set[str]:
    return {f"{method} {path}" for method, path in DtmHttp(door)._routes} | {"GET /api/ping", "GET /api/metrics"}


def grpc_routes() -> set[str]:
    services = (SERVICE, reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"])
    return {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}


async def missing_and_needless() -> tuple[set[str], set[str]]:
    """What is mounted and does not stand in the table; what stands there and is not mounted."""
    async with guarded_broker() as broker:
        mounted = native_routes() | dtm_routes(broker.door()) | grpc_routes() | {DOOR_WAYS}
    return mounted - TABLE.keys(), TABLE.keys() - mounted - {NOTHING}


async def test_the_table_has_exactly_what_is_mounted() -> None:
    assert await missing_and_needless() == (set(), set())
    assert len(NATIVE) + len(DTM_HTTP) + len(DTM_GRPC) + len(PEERS) + 1 == len(TABLE)


async def test_dtms_own_two_routes_are_answered_where_the_table_has_them() -> None:
    source = inspect.getsource(DtmHttp._answer)
    assert source.count("route ==") == 2, "a route that is not in `_routes` was added: the test above must know it"


def test_every_row_says_who_may() -> None:
    for route, needs in TABLE.items():
        assert (needs.whom == "some") == bool(needs.permissions), route
        assert set(needs.permissions) <= set(PERMISSIONS), route
        if needs.touches:
            named = {"app": "{app}", "gid": "{gid}", "group": "{group}", "topic": "topic"}[needs.touches]
            assert named in route, route


async def status_of(api: Callable[..., object], method: str, path: str, headers: dict[str, str]) -> int:
    """Of a request to an ASGI application."""
    told: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: dict[str, int]) -> None:
        told.append(event.get("status", 0))

    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": sent,
        "client": ("127.0.0.1", 1),
    }
    await api(scope, receive, send)  # type: ignore[misc]
    return told[0]


@pytest.mark.parametrize(
    ("route", "path"),
    [("GET /v1/info", "/v1/info"), ("GET /healthz", "/healthz"), ("GET /api/dtmsvr/version", "/api/dtmsvr/version")],
)
async def test_a_route_that_is_taken_out_is_missed_and_refused(
    monkeypatch: pytest.MonkeyPatch, route: str, path: str
) -> None:
    async with guarded_broker() as broker:
        api = StoreApi(broker)
        assert await status_of(api, "GET", path, ADMIN.headers) == 200
        monkeypatch.delitem(TABLE, route)
        assert await status_of(api, "GET", path, ADMIN.headers) == 403
        assert await missing_and_needless() == ({route}, set())


async def test_a_row_without_a_route_is_found_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "GET /v1/gone", TABLE["GET /v1/info"])
    assert await missing_and_needless() == (set(), {"GET /v1/gone"})


async def test_where_there_is_nothing_only_those_hear_so_who_are_known() -> None:
    async with guarded_broker() as broker:
        for api, path in ((NativeApi(broker.door()), "/v1/nothing"), (DtmHttp(broker.door()), "/api/nothing")):
            assert await status_of(api, "GET", path, {}) == 401
            assert await status_of(api, "GET", path, ADMIN.headers) == 404
        native = NativeApi(broker.door())
        assert await status_of(native, "PATCH", "/v1/info", ADMIN.headers) == 405


async def test_ways_of_the_cluster_are_for_no_caller_from_outside() -> None:
    async with guarded_broker() as broker:
        for way in (*METHODS, CALLER_OF, "close", ""):
            assert await status_of(StoreApi(broker), "POST", DOOR + way, ADMIN.headers) == 404
            assert await status_of(DoorApi(broker), "POST", DOOR + way, ADMIN.headers) == 403
