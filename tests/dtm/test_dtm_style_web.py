"""Services in FastAPI, Flask and Django, served for real and called by a real broker."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
import flask
import httpx
import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path
from fastapi import Body, FastAPI, Request
from style_bank import Bank

import tallystick
from asgi import asgi_server
from brokers import BrokerProcess
from eventually import eventually
from tallystick.client import handlers
from tallystick.dtm import BranchBarrier, Failure, Msg, Ongoing, web

Serve = Callable[[Bank], contextlib.AbstractContextManager[str]]
CHECK = "/tallystick/check"


@pytest.fixture
def bank(one_bank: Bank) -> Bank:
    return one_bank


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


FRAMEWORKS = [in_fastapi, in_flask, in_django]


@pytest.fixture(params=FRAMEWORKS, ids=["fastapi", "flask", "django"])
def service(request: pytest.FixtureRequest, bank: Bank) -> Iterator[str]:
    with request.param(bank) as url:
        yield url


def test_a_transfer_arrives_once(ts: tallystick.Client, bank: Bank, service: str) -> None:
    msg = Msg(ts).add(f"{service}/trans-in", {"amount": 30}).set_wait_result()
    with bank.connection() as connection:
        msg.do_and_submit_db(f"{service}/query-prepared", connection, lambda used: bank.adjust(used, 1, -30))
    assert bank.balances() == (9970, 10030)
    # The same call again, as after a lost answer.
    query = {"gid": msg.gid, "trans_type": "msg", "branch_id": "01", "op": "action"}
    answer = httpx.post(f"{service}/trans-in", params=query, json={"amount": 30})
    assert (answer.status_code, answer.json()) == (200, {"dtm_result": "SUCCESS"})
    assert bank.balances() == (9970, 10030)


def test_exceptions_become_dtms_answers(service: str, bank: Bank) -> None:
    query = {"gid": "gid-1", "trans_type": "msg", "branch_id": "01", "op": "action"}
    told = {}
    for amount in (0, -1):
        answer = httpx.post(f"{service}/trans-in", params=query, json={"amount": amount})
        told[amount] = (answer.status_code, answer.json())
    assert told == {
        0: (409, {"dtm_result": "FAILURE", "message": "nothing to transfer"}),
        -1: (425, {"dtm_result": "ONGOING", "message": "still thinking"}),
    }
    answer = httpx.post(f"{service}/trans-in", params={**query, "gid": ""}, json={"amount": 30})
    assert (answer.status_code, set(answer.json())) == (400, {"message"})
    assert bank.balances() == (10000, 10000)


def test_a_view_may_answer_for_itself(service: str) -> None:
    assert httpx.get(f"{service}/own", params={"name": "bob"}).json() == {"hello": "bob"}


def test_a_refused_call_is_told_to_the_one_who_waits(ts: tallystick.Client, service: str) -> None:
    msg = Msg(ts).add(f"{service}/trans-in", {"amount": 0}).set_wait_result()
    with pytest.raises(tallystick.CallsNotFinished, match="nothing to transfer") as raised:
        msg.submit()
    assert raised.value.view is not None
    assert raised.value.view.calls[0].state == "waiting"


@pytest.mark.parametrize("place", ["/query-prepared", CHECK])
def test_a_check_back_is_answered(
    broker: BrokerProcess, ts: tallystick.Client, bank: Bank, service: str, place: str
) -> None:
    """Twice prepared and never submitted: one was committed locally, the other was not. Nobody but the URL can tell."""
    committed, lost = (Msg(broker.url, ts.new_gid(), timeout_to_fail=0.2) for _ in range(2))
    with bank.connection() as connection:
        barrier = BranchBarrier("msg", committed.gid, "00", "msg")
        barrier.call(connection, lambda used: bank.adjust(used, 1, -30))
    for msg in (committed, lost):
        msg.add(f"{service}/trans-in", {"amount": 30}).prepare(service + place)
    eventually(lambda: ts.calls(committed.gid).state == "done")
    eventually(lambda: ts.outcome(lost.gid) == "rolled_back")
    assert bank.balances() == (9970, 10030)


def test_a_check_back_waits_for_what_is_running(bank: Bank, service: str) -> None:
    barrier = BranchBarrier("msg", "gid-1", "00", "msg")
    query = {"gid": "gid-1", "trans_type": "msg", "branch_id": "00", "op": "msg"}
    with bank.connection() as connection, barrier.once(connection):
        answer = httpx.get(f"{service}/query-prepared", params=query, timeout=20)
        assert (answer.status_code, answer.json()["dtm_result"]) == (425, "ONGOING")
        connection.commit()
    assert httpx.get(f"{service}/query-prepared", params=query).json() == {"dtm_result": "SUCCESS"}
