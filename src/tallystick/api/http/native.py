"""The native API as an ASGI application."""

from __future__ import annotations

from tallystick.api.http.paths import Paths
from tallystick.api.http.route import Asked
from tallystick.api.http.table import ROUTES
from tallystick.api.serving.asgi import CallerGone, HttpAnswer, Receive, Scope, Send
from tallystick.api.serving.problems import problem_of
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import MethodNotAllowed, NotFound
from tallystick.core.wire import PROBLEM


class NativeApi:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door
        self._paths = Paths(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes, given = self._paths.find(scope["path"])
        route = routes.get(scope["method"])
        if route is None:
            await _nothing(scope["method"], scope["path"][:200], sorted(routes)).send(send)
            return
        try:
            answer = await route.answer(Asked(scope, receive, given, self._door, ROUTES))
        except CallerGone:
            answer = HttpAnswer(b"", status=499)  # nobody reads it
        except Exception as error:
            answer = problem_answer(error)
        # The route's pattern, never the path itself: a label for each topic would have no bound.
        self._door.answered(route.path, answer.status)
        await answer.send(send)


def _nothing(method: str, path: str, possible: list[str]) -> HttpAnswer:
    if not possible:
        return problem_answer(NotFound(f"there is nothing at {path}; see /docs"))
    answer = problem_answer(MethodNotAllowed(f"{method} is not possible on {path}"))
    answer.headers["Allow"] = ", ".join(possible)
    return answer


def problem_answer(error: Exception) -> HttpAnswer:
    """What is told of an error."""
    status, body, headers = problem_of(error)
    return HttpAnswer(body, PROBLEM, status, headers)
