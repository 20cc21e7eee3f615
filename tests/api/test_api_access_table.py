"""The table of routes has all that is mounted, and nothing else; what it does not have is refused."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from access_requests import HTTP
from grpc_reflection.v1alpha import reflection_pb2

from access_tokens import ADMIN, settings
from brokers import running_broker
from dtm_grpc import GrpcClient, Refused
from raw_client import RawClient
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


async def mounted_routes() -> set[str]:
    async with guarded_broker() as broker:
        return native_routes() | dtm_routes(broker.door()) | grpc_routes() | {DOOR_WAYS}


def missing_and_needless(mounted: set[str]) -> tuple[set[str], set[str]]:
    """What is mounted and does not stand in the table; what stands there and is not mounted."""
    return mounted - TABLE.keys(), TABLE.keys() - mounted - {NOTHING}


async def test_the_table_has_exactly_what_is_mounted() -> None:
    assert missing_and_needless(await mounted_routes()) == (set(), set())
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


async def test_a_row_that_is_taken_out_is_missed_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = await mounted_routes()
    for route in sorted(mounted):
        with monkeypatch.context() as taken:
            taken.delitem(TABLE, route)
            assert missing_and_needless(mounted) == ({route}, set())


_NO_ROW_BUT_ONE = """
from tallystick.api.access.table import TABLE
for route in TABLE.keys() - {"GET /readyz"}:
    del TABLE[route]
"""


def test_what_the_table_does_not_have_is_refused_to_everybody() -> None:
    """Every route of every interface but one, by which a broker is known to be there."""
    with running_broker(grpc=True, prelude=_NO_ROW_BUT_ONE, **settings()) as broker, RawClient(broker.url) as client:
        for route, asked in HTTP.items():
            for headers in ({}, ADMIN.headers):
                answer = client.request(route.partition(" ")[0], asked.path, asked.content(), headers)
                assert answer.status == (200 if route == "GET /readyz" else 403), (route, answer)
        assert client.request("GET", "/v1/nothing", None, ADMIN.headers).status == 403
        with GrpcClient(broker) as dtm:
            for route in DTM_GRPC:
                _, service, method = route.split("/")
                with pytest.raises(Refused, match=r"PERMISSION_DENIED.*does not stand in the table of routes"):
                    dtm.call(method, b"", service, metadata=[("authorization", f"Bearer {ADMIN.text}")])


async def test_a_row_without_a_route_is_found_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "GET /v1/gone", TABLE["GET /v1/info"])
    assert missing_and_needless(await mounted_routes()) == (set(), {"GET /v1/gone"})


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
