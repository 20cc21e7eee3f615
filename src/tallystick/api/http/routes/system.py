"""Health, readiness, metrics, and what a client wants to know first."""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from tallystick.api.http.bodies import respond
from tallystick.api.http.openapi import describe, docs_page
from tallystick.api.http.routes.context import broker_of
from tallystick.core.wire import BrokerInfo


async def healthz(_: Request) -> Response:
    """The process runs and its event loop turns."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """It takes work: the store can write and the broker is not on its way out."""
    broker = broker_of(request)
    failure = "draining" if broker.draining else broker.store.failure()
    if failure:
        return JSONResponse({"status": "not ready", "reason": failure}, 503)
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    await broker_of(request).count()
    return Response(generate_latest(broker_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def info(request: Request) -> Response:
    broker = broker_of(request)
    counts = await broker.look(lambda store: store.counts())
    return respond(
        request,
        BrokerInfo(
            broker.store.id,
            version("tallystick"),
            broker.clock.now_ms(),
            broker.config.dedup_retention,
            counts.oldest_pending_at,
            msgspec.structs.asdict(broker.limits),
            counts.calls_waiting,
            counts.calls_parked,
            broker.config.grpc_port if broker.config.grpc else 0,
        ),
    )


async def openapi(_: Request) -> Response:
    return JSONResponse(describe())


async def docs(_: Request) -> Response:
    return HTMLResponse(docs_page())
