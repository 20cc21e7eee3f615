"""Health, readiness, metrics, the API's own description, and what a client wants to know first."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from tallystick.api.http.openapi import describe, docs_page
from tallystick.api.http.route import Asked
from tallystick.core.wire import JSON, BrokerInfo


class Health(Struct):
    status: Literal["ok"] = "ok"


class Readiness(Struct, omit_defaults=True):
    """The status is 503 if it is not ready."""

    status: Literal["ready", "not ready"]
    reason: str | None = None


async def healthz(_: Asked) -> Health:
    """The process runs and its event loop turns."""
    return Health()


async def readyz(asked: Asked) -> Readiness | Response:
    """It takes work: the store can write and the broker is not on its way out."""
    failure = asked.door.not_ready()
    return asked.respond(Readiness("not ready", failure), 503) if failure else Readiness("ready")


async def metrics(asked: Asked) -> Response:
    return Response(await asked.door.metrics(), media_type=CONTENT_TYPE_LATEST)


async def info(asked: Asked) -> BrokerInfo:
    return await asked.door.info()


async def openapi(asked: Asked) -> Response:
    return Response(msgspec.json.encode(describe(asked.routes)), media_type=JSON)


async def docs(asked: Asked) -> Response:
    return HTMLResponse(docs_page(asked.routes))
