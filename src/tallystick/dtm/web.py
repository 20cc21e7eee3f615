"""Views that answer in dtm's words: nothing returned is SUCCESS, `Failure` is 409, `Ongoing` is 425.

    @app.post("/trans-in")                @app.post("/trans-in")            # Django, in urls.py:
    @web.fastapi                          @web.flask                        #   path("trans-in", web.django(trans_in))
    def trans_in(request: Request): ...   def trans_in(): ...               def trans_in(request): ...

The same for a view that answers a check-back with `query_prepared`. Whatever else a view returns is left as it is, and
any other exception is the framework's business: for the broker a 500 is no answer, and it will ask again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.dtm.errors import Failure, Ongoing

View = Callable[..., Any]
Respond = Callable[[int, dict[str, str]], Any]

_SUCCESS = {"dtm_result": "SUCCESS"}


def fastapi(view: View) -> View:
    """For FastAPI and Starlette, synchronous or not."""

    def respond(status: int, content: dict[str, str]) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(content, status)

    answer = _answering(view, respond)
    # FastAPI reads what a view wants from its signature, in which names must mean what they do in the view's module.
    wanted = _signature(view)
    answer.__signature__ = wanted.replace(return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]
    return answer


def flask(view: View) -> View:
    """For Flask and its kind."""
    return _answering(view, lambda status, content: (content, status))


def django(view: View) -> View:
    """For Django. The view takes POSTs of a broker, which has no CSRF token and needs none."""

    def respond(status: int, content: dict[str, str]) -> Any:
        from django.http import JsonResponse

        return JsonResponse(content, status=status)

    answer = _answering(view, respond)
    answer.csrf_exempt = True  # type: ignore[attr-defined]
    return answer


def told(failure: TallystickError) -> tuple[int, dict[str, str]]:
    """The status and the body that stand for an exception, for other frameworks."""
    if isinstance(failure, Failure | Ongoing):
        return failure.status, {"dtm_result": type(failure).__name__.upper(), "message": failure.detail}
    return failure.status, {"message": failure.detail}


def _answering(view: View, respond: Respond) -> View:
    def ended(result: Any) -> Any:
        return respond(200, _SUCCESS) if result is None else result

    @functools.wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return ended(view(*args, **kwargs))
        except (Failure, Ongoing, InvalidRequest) as failure:
            return respond(*told(failure))

    @functools.wraps(view)
    async def answer_async(*args: Any, **kwargs: Any) -> Any:
        try:
            return ended(await view(*args, **kwargs))
        except (Failure, Ongoing, InvalidRequest) as failure:
            return respond(*told(failure))

    return answer_async if inspect.iscoroutinefunction(view) else answer


def _signature(view: View) -> inspect.Signature:
    try:
        return inspect.signature(view, eval_str=True)
    except NameError:
        return inspect.signature(view)
