"""Health, readiness, metrics, the API's own description, and what a client wants to know first."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from tallystick.api.http.openapi import describe, docs_page
from tallystick.api.http.route import Asked
from tallystick.api.serving.asgi import HttpAnswer
from tallystick.core.wire import JSON, BrokerInfo, CallerView, ClusterView


class Health(Struct):
    status: Literal["ok"] = "ok"


class Readiness(Struct, omit_defaults=True):
    """The status is 503 if it is not ready."""

    status: Literal["ready", "not ready"]
    reason: str | None = None


async def healthz(_: Asked) -> Health:
    """The process runs and its event loop turns."""
    return Health()


async def readyz(asked: Asked) -> Readiness | HttpAnswer:
    """It takes work: the store can write and the broker is not on its way out."""
    failure = asked.door.not_ready()
    return asked.respond(Readiness("not ready", failure), 503) if failure else Readiness("ready")


async def metrics(asked: Asked) -> HttpAnswer:
    return HttpAnswer(await asked.door.metrics(), CONTENT_TYPE_LATEST)


async def info(asked: Asked) -> BrokerInfo:
    return await asked.door.info()


async def whoami(asked: Asked) -> CallerView:
    return asked.door.whoami()


async def cluster(asked: Asked) -> ClusterView:
    return asked.door.cluster()


async def openapi(asked: Asked) -> HttpAnswer:
    return HttpAnswer(msgspec.json.encode(describe(asked.routes)), JSON)


async def docs(asked: Asked) -> HttpAnswer:
    return HttpAnswer(docs_page(asked.routes).encode(), "text/html; charset=utf-8")
