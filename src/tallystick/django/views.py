"""The check-back as a view: `GET .../check?gid=...`, answered from the barrier."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from tallystick.barrier.adapters.django import opener_of
from tallystick.client.handlers import CheckAnswers
from tallystick.client.proof.middleware import problem
from tallystick.client.proof.requests import prove_django
from tallystick.core.errors import Unproven
from tallystick.core.wire import PROBLEM, SOURCE_HEADER
from tallystick.django import conf

_answers: list[CheckAnswers] = []


def check(request: HttpRequest) -> HttpResponse:
    """200 committed, 409 rolled back, 425 not known yet; an error is a 500, and never an outcome.

    The broker says which database it means, and each alias of the settings is tried until it is that one. Where the
    settings or the environment have a verifier, nobody but a broker is answered.
    """
    try:
        prove_django(conf.verifier, request)
    except Unproven as refusal:
        status, body = problem(refusal)
        return HttpResponse(body, status=status, content_type=PROBLEM)
    if not _answers:
        _answers.append(
            CheckAnswers([opener_of(alias) for alias in conf.aliases() or [DEFAULT_DB_ALIAS]], conf.barrier_table())
        )
    source = unquote(request.headers.get(SOURCE_HEADER, ""))
    status, body = _answers[0].answer(request.method, request.META.get("QUERY_STRING", ""), source)
    return HttpResponse(body, status=status, content_type="application/json")


check = csrf_exempt(check)
for _alias in connections:  # it has connections of its own, and must not begin transactions on those of the request
    check = transaction.non_atomic_requests(using=_alias)(check)
# For Django's LoginRequiredMiddleware: a broker does not log in.
check.login_required = False  # type: ignore[attr-defined]


def _forget(*, setting: str, **_: Any) -> None:
    if setting == conf.NAME:
        _answers.clear()


setting_changed.connect(_forget, dispatch_uid="tallystick-check")
