"""The native API as an ASGI application: the hot path by hand, everything else through Starlette."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from tallystick.api.http.batch import handle_batch
from tallystick.api.http.route import Asked, Route
from tallystick.api.http.table import ROUTES
from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send
from tallystick.api.serving.problems import problem_of
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import MethodNotAllowed, NotFound
from tallystick.core.wire import PROBLEM


class NativeApi:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door
        self._rest = Starlette(
            routes=[self._path(route) for route in ROUTES], exception_handlers={HTTPException: _http_error}
        )
        # A path with one slash too many is a mistake to be told, not an answer to be sent elsewhere.
        self._rest.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/batch" and scope["method"] == "POST" and not scope["query_string"]:
            self._door.answered("/v1/batch", await handle_batch(self._door, scope, receive, send))
        else:
            await self._rest(scope, receive, send)

    def _path(self, route: Route) -> Path:
        async def endpoint(request: Request) -> Response:
            try:
                response = await route.answer(Asked(request, self._door, ROUTES))
            except CallerGone:
                response = Response(status_code=499)  # nobody reads it
            except Exception as error:
                response = _problem(error)
            # The route's pattern, never the path itself: a label for each topic would have no bound.
            self._door.answered(route.path, response.status_code)
            return response

        return Path(route.path, endpoint, methods=[route.method])


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        response = _problem(MethodNotAllowed(f"{request.method} is not possible on {request.url.path[:200]}"))
        response.headers.update(error.headers or {})  # Allow: what is possible
        return response
    return _problem(NotFound(f"there is nothing at {request.url.path[:200]}; see /docs"))


def _problem(error: Exception) -> Response:
    status, body, headers = problem_of(error)
    return Response(body, status, headers, PROBLEM)
