"""Views that a broker calls (`tx.call`): each has its effect once, however often it is asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS, connections

from tallystick.client.base.results import nature_of
from tallystick.client.proof.verifier import Verifier
from tallystick.core.errors import InvalidRequest
from tallystick.django import conf
from tallystick.dtm import web
from tallystick.dtm.branch import BranchBarrier

View = Callable[..., Any]
V = TypeVar("V", bound=View)


@overload
def called_once(view: View, /) -> View: ...
@overload
def called_once(*, using: str = DEFAULT_DB_ALIAS, verifier: Verifier | None = None) -> Callable[[View], View]: ...
def called_once(view: View | None = None, /, *, using: str = DEFAULT_DB_ALIAS, verifier: Verifier | None = None) -> Any:
    """A view whose changes in the database `using` happen once for each call of a broker.

    It runs in an `atomic(using)` with a row of the branch barrier; a call that comes again is answered with success and
    not carried out. Nothing returned is a success; `tallystick.dtm.Failure` is 409, `Ongoing` 425, and the broker
    calls again after everything but a success. A broker has no CSRF token and needs none. With a `verifier` (or that of
    the settings, or of the environment) everybody else is answered 401, before the barrier is asked.
    """

    def decorate(view: View) -> View:
        if nature_of(view) in ("coroutine", "generator"):
            raise InvalidRequest(
                f"view: it must be a plain function (got the {nature_of(view)} function {view.__qualname__}). Write "
                "it with `def`, without `yield`.",
                field="view",
            )

        @functools.wraps(view)
        def once(request: Any, *args: Any, **kwargs: Any) -> Any:
            barrier = BranchBarrier.from_query(request.GET, table=conf.barrier_table())
            return barrier.call(connections[using], lambda _: view(request, *args, **kwargs))

        return web.django_if(conf.verifier if verifier is None else lambda: verifier, once)

    return decorate if view is None else decorate(view)
