"""Views that answer in dtm's words: nothing returned is SUCCESS, `Failure` is 409, `Ongoing` is 425.

    @app.post("/trans-in")                @app.post("/trans-in")            # Django, in urls.py:
    @web.fastapi                          @web.flask                        #   path("trans-in", web.django(trans_in))
    def trans_in(request: Request): ...   def trans_in(): ...               def trans_in(request): ...

The same for a view that answers a check-back with `query_prepared`. Whatever else a view returns is left as it is, and
any other exception is the framework's business: for the broker a 500 is no answer, and it will ask again.

With `@web.flask(verifier=...)` and its kind, or where TALLYSTICK_SIGNING_KEYS_FILE is set, a request that no broker has
signed is answered 401 before the view is called. A barrier by itself sees only the query, and cannot do that.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from tallystick.client.proof.requests import PROVEN, Choose, chosen, prove_django, prove_environ, prove_scope
from tallystick.client.proof.verifier import Verifier
from tallystick.core.errors import InvalidRequest, TallystickError, Unproven
from tallystick.dtm.errors import Failure, Ongoing

View = Callable[..., Any]
Respond = Callable[[int, dict[str, str]], Any]

_SUCCESS = {"dtm_result": "SUCCESS"}
_TOLD = (Failure, Ongoing, InvalidRequest, Unproven)
_ANNOTATED = re.compile(r"(?:[\w.]+\.)?Annotated\[\s*([\w.]+)\s*,")
_REQUEST = "tallystick_request"  # what a view of FastAPI's gets beside what it wants


def fastapi(view: View | None = None, /, *, verifier: Verifier | None = None) -> Any:
    """For FastAPI and Starlette, synchronous or not. With a `verifier`, nobody but a broker comes in."""
    return _decorator(view, lambda view: _for_fastapi(chosen(verifier), view))


def flask(view: View | None = None, /, *, verifier: Verifier | None = None) -> Any:
    """For Flask and its kind. With a `verifier`, nobody but a broker comes in."""
    choose = chosen(verifier)

    def prove(*_: Any, **__: Any) -> None:
        from flask import request

        found = None if PROVEN in request.environ else choose()
        if found is not None:
            prove_environ(found, request.environ, request.get_data)

    def decorate(view: View) -> View:
        return _answering(view, lambda status, content: (content, status), prove)

    return _decorator(view, decorate)


def django(view: View | None = None, /, *, verifier: Verifier | None = None) -> Any:
    """For Django. The view takes POSTs of a broker, which has no CSRF token and needs none. With a `verifier`, nobody
    but a broker comes in."""
    return _decorator(view, lambda view: django_if(chosen(verifier), view))


def django_if(choose: Choose, view: View) -> View:
    """The same with whatever verifier there is when a request comes."""

    def respond(status: int, content: dict[str, str]) -> Any:
        from django.http import JsonResponse

        return JsonResponse(content, status=status)

    def prove(request: Any, *_: Any, **__: Any) -> None:
        prove_django(choose, request)

    answer = _answering(view, respond, prove)
    answer.csrf_exempt = True  # type: ignore[attr-defined]
    return answer


def told(failure: TallystickError) -> tuple[int, dict[str, str]]:
    """The status and the body that stand for an exception, for other frameworks."""
    if isinstance(failure, Failure | Ongoing):
        return failure.status, {"dtm_result": type(failure).__name__.upper(), "message": failure.detail}
    return failure.status, {"message": failure.detail}


def _decorator(view: View | None, decorate: Callable[[View], View]) -> Any:
    return decorate if view is None else decorate(view)


def _answering(view: View, respond: Respond, prove: Callable[..., None]) -> View:
    def ended(result: Any) -> Any:
        return respond(200, _SUCCESS) if result is None else result

    @functools.wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            prove(*args, **kwargs)
            return ended(view(*args, **kwargs))
        except _TOLD as failure:
            return respond(*told(failure))

    @functools.wraps(view)
    async def answer_async(*args: Any, **kwargs: Any) -> Any:
        try:
            prove(*args, **kwargs)
            return ended(await view(*args, **kwargs))
        except _TOLD as failure:
            return respond(*told(failure))

    return answer_async if inspect.iscoroutinefunction(view) else answer


def _for_fastapi(choose: Choose, view: View) -> View:
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    @functools.wraps(view)
    async def answer(*args: Any, **kwargs: Any) -> Any:
        added = kwargs.pop(_REQUEST, None)
        asked = (one for one in (added, *args, *kwargs.values()) if isinstance(one, Request))
        try:
            await _prove_starlette(choose, next(asked, None))
            if inspect.iscoroutinefunction(view):
                result = await view(*args, **kwargs)
            else:
                result = await run_in_threadpool(view, *args, **kwargs)
                if inspect.isawaitable(result):  # of a decorator around a coroutine function
                    result = await result
            return JSONResponse(_SUCCESS) if result is None else result
        except _TOLD as failure:
            status, content = told(failure)
            return JSONResponse(content, status)

    # FastAPI reads what a view wants from its signature, in which names must mean what they do in the view's module.
    wanted = _signature(view)
    # It gives the request once: to the view, if that wants it, and else to us.
    has_it = any(_is_a(one.annotation, Request) for one in wanted.parameters.values())
    more = [] if has_it else [inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    answer.__signature__ = wanted.replace(  # type: ignore[attr-defined]
        parameters=_with(wanted, more), return_annotation=inspect.Signature.empty
    )
    return answer


async def _prove_starlette(choose: Choose, request: Any) -> None:
    verifier = None if request is not None and PROVEN in request.scope else choose()
    if verifier is None:
        return
    if request is None:  # the view was called by something else than FastAPI
        raise Unproven("there is no request here that could be verified", reason="missing")
    await prove_scope(verifier, request.scope, request.body)


def _is_a(annotation: Any, kind: type) -> bool:
    if isinstance(annotation, str):  # of a name that is not known where the view was defined
        inner = _ANNOTATED.match(annotation)
        return (inner[1] if inner else annotation).rpartition(".")[2] == kind.__name__
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, kind)


def _with(signature: inspect.Signature, more: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters, with more behind them: but before those that take the rest."""
    known = list(signature.parameters.values())
    rest = [one for one in known if one.kind is inspect.Parameter.VAR_KEYWORD]
    return [*(one for one in known if one not in rest), *more, *rest]


def _signature(view: View) -> inspect.Signature:
    try:
        return inspect.signature(view, eval_str=True)
    except NameError:
        return inspect.signature(view)
