"""The native API as an ASGI application."""

from __future__ import annotations

from tallystick.api.access.gate import Gate, LetIn
from tallystick.api.access.refusal_log import tell_if_refused
from tallystick.api.access.table import NOTHING
from tallystick.api.http.paths import Paths
from tallystick.api.http.route import Asked, Route
from tallystick.api.http.table import ROUTES
from tallystick.api.serving.asgi import CallerGone, HttpAnswer, Receive, Scope, Send
from tallystick.api.serving.problems import problem_of
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import MethodNotAllowed, NotFound
from tallystick.core.wire import PROBLEM


class NativeApi:
    def __init__(self, door: BrokerDoor) -> None:
        self._door, self._gate = door, Gate(door)
        self._paths = Paths(ROUTES)

    def named(self, scope: Scope) -> tuple[str, dict[str, str]]:
        """The route of a request as the table of routes has it, and what its path names."""
        routes, given = self._paths.find(scope["path"])
        return _name(routes.get(scope["method"])), given

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes, given = self._paths.find(scope["path"])
        route = routes.get(scope["method"])
        name = _name(route)
        try:
            visit = await self._gate.visit(scope, receive, send, name, given)
        except CallerGone:
            raise
        except Exception as error:
            await self._told(problem_answer(error), route).send(send)
            return
        with visit:
            if route is None:
                answer = _nothing(scope["method"], scope["path"][:200], sorted(routes))
            else:
                answer = await _answer(route, scope, given, visit)
            tell_if_refused(answer.status, name, scope)
            await self._told(answer, route).send(visit.send)

    def _told(self, answer: HttpAnswer, route: Route | None) -> HttpAnswer:
        # The route's pattern, never the path itself: a label for each topic would have no bound.
        if route is not None:
            self._door.answered(route.path, answer.status)
        return answer


def _name(route: Route | None) -> str:
    return NOTHING if route is None else f"{route.method} {route.path}"


async def _answer(route: Route, scope: Scope, given: dict[str, str], visit: LetIn) -> HttpAnswer:
    try:
        return await route.answer(Asked(scope, visit.receive, given, visit.door, ROUTES))
    except CallerGone:
        return HttpAnswer(b"", status=499)  # nobody reads it
    except Exception as error:
        return problem_answer(error)


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
