"""The ASGI application of a broker."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.dtm.http import DtmHttp
from tallystick.api.http.batch import Receive, Scope, Send, handle_batch
from tallystick.api.http.problems import problem_response
from tallystick.api.http.routes.context import CallerGone
from tallystick.api.http.table import ENTRIES, Entry
from tallystick.broker.broker import Broker
from tallystick.core.errors import MethodNotAllowed, NotFound

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """Sends the hot path and dtm's API to their own handlers and everything else to Starlette."""

    def __init__(self, open_broker: Callable[[], AbstractAsyncContextManager[Broker]]) -> None:
        self._open_broker = open_broker
        self.broker: Broker | None = None
        self._dtm: DtmHttp | None = None
        self._starlette = Starlette(
            # The hot path is taken before Starlette sees it; its entry is here for the methods it does not have.
            routes=[
                _route(entry) if entry.handler else Route(entry.path, self, methods=[entry.method]) for entry in ENTRIES
            ],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error},
        )
        # A path with one slash too many is a mistake to be told, not an answer to be sent elsewhere.
        self._starlette.router.redirect_slashes = False

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self._open_broker() as self.broker:
            app.state.broker = self.broker
            self._dtm = DtmHttp(self.broker)
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/batch" and scope["method"] == "POST":
            assert self.broker is not None  # noqa: S101 - requests come after the lifespan's start
            status = await handle_batch(self.broker, scope, receive, send)
            self.broker.metrics.requests.labels("/v1/batch", status).inc()
        elif scope["type"] == "http" and scope["path"].startswith(DTM_PREFIX):
            assert self._dtm is not None  # noqa: S101 - as above
            await self._dtm(scope, receive, send)
        else:
            await self._starlette(scope, receive, send)


def _route(entry: Entry) -> Route:
    module, _, name = entry.handler.partition(".")
    handler: Handler = getattr(importlib.import_module(f"tallystick.api.http.routes.{module}"), name)

    async def endpoint(request: Request) -> Response:
        try:
            response = await handler(request)
        except CallerGone:
            response = Response(status_code=499)  # nobody reads it
        except Exception as error:
            response = problem_response(error)
        # The route's pattern, never the path itself: a label for each topic would have no bound.
        request.app.state.broker.metrics.requests.labels(entry.path, response.status_code).inc()
        return response

    return Route(entry.path, endpoint, methods=[entry.method], name=entry.handler)


async def _http_error(request: Request, error: Any) -> Response:
    if error.status_code == 405:
        response = problem_response(MethodNotAllowed(f"{request.method} is not possible on {request.url.path[:200]}"))
        response.headers.update(error.headers or {})  # Allow: what is possible
        return response
    return problem_response(NotFound(f"there is nothing at {request.url.path[:200]}; see /docs"))
