"""The same service in FastAPI, Flask and Django, served for real: transfers, and check-backs in both manners."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
import flask
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path
from fastapi import Body, FastAPI, Request
from style_bank import Bank

from asgi import asgi_server
from tallystick.client import handlers
from tallystick.dtm import BranchBarrier, Failure, Ongoing, web

CHECK = "/tallystick/check"


def trans_in(bank: Bank, query: Any, amount: int) -> None:
    """The business of bank B, the same in every framework."""
    if amount == 0:
        raise Failure("nothing to transfer")
    if amount < 0:
        raise Ongoing("still thinking")
    with bank.connection() as connection:
        BranchBarrier.from_query(query).call(connection, lambda used: bank.adjust(used, 2, amount))


def query_prepared(bank: Bank, query: Any) -> None:
    with bank.connection() as connection:
        BranchBarrier.from_query(query).query_prepared(connection)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def wsgi_server(app: Any) -> Iterator[str]:
    server: WSGIServer = make_server("127.0.0.1", 0, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def in_fastapi(bank: Bank) -> Any:
    app = FastAPI()

    @app.post("/trans-in")
    @web.fastapi
    def view(request: Request, amount: int = Body(embed=True)) -> None:
        trans_in(bank, request.query_params, amount)

    @app.get("/query-prepared")
    @web.fastapi
    async def check(request: Request) -> None:
        query_prepared(bank, request.query_params)

    @app.get("/own")
    @web.fastapi
    def own(name: str) -> dict[str, str]:
        return {"hello": name}

    return asgi_server(handlers.asgi(bank.open, app, CHECK))


def in_flask(bank: Bank) -> Any:
    app = flask.Flask("bank-b")

    @app.post("/trans-in")
    @web.flask
    def view() -> None:
        trans_in(bank, flask.request.args, flask.request.json["amount"])

    @app.get("/query-prepared")
    @web.flask
    def check() -> None:
        query_prepared(bank, flask.request.args)

    @app.get("/own")
    @web.flask
    def own() -> dict[str, str]:
        return {"hello": flask.request.args["name"]}

    app.wsgi_app = handlers.wsgi(bank.open, app.wsgi_app, CHECK)  # type: ignore[method-assign]
    return wsgi_server(app)


class _Urls:
    """What Django finds its views in; set anew for each test."""

    urlpatterns: ClassVar[list[Any]] = []


@contextlib.contextmanager
def in_django(bank: Bank) -> Iterator[str]:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="x")
        django.setup()

    def view(request: Any) -> None:
        trans_in(bank, request.GET, json.loads(request.body)["amount"])

    def check(request: Any) -> None:
        query_prepared(bank, request.GET)

    def own(request: Any) -> Any:
        from django.http import JsonResponse

        return JsonResponse({"hello": request.GET["name"]})

    views = {"trans-in": view, "query-prepared": check, "own": own}
    _Urls.urlpatterns = [path(route, web.django(function)) for route, function in views.items()]
    middleware = ["django.middleware.csrf.CsrfViewMiddleware"]
    with override_settings(ROOT_URLCONF=_Urls, MIDDLEWARE=middleware):
        django.urls.clear_url_caches()
        with wsgi_server(handlers.wsgi(bank.open, WSGIHandler(), CHECK)) as url:
            yield url


FRAMEWORKS = {"fastapi": in_fastapi, "flask": in_flask, "django": in_django}
