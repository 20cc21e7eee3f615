"""Check-back handlers, mounted in real web frameworks and asked by a real broker."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import flask
import httpx
import pytest
from client_support import Bank, pay, values_in
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette

from asgi import asgi_server
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from tallystick import CheckBack, Client
from tallystick.barrier import adapt_sync, mark_committed, run_sync
from tallystick.client import handlers

Ask = Callable[[str], httpx.Response]
PATH = "/tallystick/check"


@contextlib.contextmanager
def asgi_client(app: Any) -> Iterator[httpx.Client]:
    with asgi_server(app) as url, httpx.Client(base_url=url, follow_redirects=True) as client:
        yield client


def wsgi_client(app: Any) -> httpx.Client:
    return httpx.Client(transport=httpx.WSGITransport(app), base_url="http://service")


def _starlette(bank: Bank) -> Any:
    app = Starlette()
    app.mount(PATH, handlers.asgi(bank.open))
    return asgi_client(app)


def _fastapi(bank: Bank) -> Any:
    app = FastAPI()
    app.mount(PATH, handlers.asgi(bank.open))
    return asgi_client(app)


def _around_an_asgi_app(bank: Bank) -> Any:
    app = FastAPI()
    app.get("/other")(lambda: "other")
    return asgi_client(handlers.asgi(bank.open, app, PATH))


def _flask(bank: Bank) -> Any:
    app = flask.Flask("service")
    app.add_url_rule("/other", view_func=lambda: "other")
    app.wsgi_app = handlers.wsgi(bank.open, app.wsgi_app, PATH)  # type: ignore[method-assign]
    return wsgi_client(app)


def _plain_wsgi(bank: Bank) -> Any:
    return wsgi_client(handlers.wsgi(bank.open))


APPS = [_starlette, _fastapi, _around_an_asgi_app, _flask, _plain_wsgi]


@pytest.fixture(params=APPS, ids=[app.__name__.strip("_") for app in APPS])
def ask(request: pytest.FixtureRequest, any_bank: Bank) -> Iterator[Ask]:
    with request.param(any_bank) as client:
        yield lambda query: client.get(f"{PATH}{query}")


def commit(bank: Bank, gid: str) -> None:
    with bank.connection() as connection:
        adapter = adapt_sync(connection)
        adapter.begin()
        run_sync(adapter, mark_committed(gid))
        adapter.commit()


def test_committed_rolled_back_and_running(ask: Ask, any_bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "WAIT_SECONDS", 1.0)  # which a running transaction is waited for, in vain
    commit(any_bank, "gid-committed")
    answer = ask("?gid=gid-committed&trans_type=msg&branch_id=00&op=msg")
    assert (answer.status_code, answer.json()) == (200, {"outcome": "committed", "dtm_result": "SUCCESS"})
    answer = ask("?gid=gid-unknown")
    assert (answer.status_code, answer.json()) == (409, {"outcome": "rolled_back", "dtm_result": "FAILURE"})
    with any_bank.connection() as connection:
        adapter = adapt_sync(connection)
        adapter.begin()
        run_sync(adapter, mark_committed("gid-running"))
        answer = ask("?gid=gid-running")
        assert (answer.status_code, answer.json()) == (425, {"outcome": "unknown", "dtm_result": "ONGOING"})
        adapter.commit()
    assert ask("?gid=gid-running").status_code == 200


def test_bad_questions_get_no_outcome(ask: Ask) -> None:
    for query in ("", "?gid=", "?gid=no%20spaces", "?gid=a&gid=b", "?other=1", f"?gid={'x' * 200}"):
        answer = ask(query)
        assert answer.status_code == 400
        assert "outcome" not in answer.json()


def test_an_outcome_is_remembered(ask: Ask, any_bank: Bank) -> None:
    commit(any_bank, "gid-1")
    assert ask("?gid=gid-1").status_code == 200
    any_bank.run("drop table tallystick_barrier")
    assert ask("?gid=gid-1").status_code == 200
    answer = ask("?gid=gid-2")
    assert answer.status_code == 500
    assert "outcome" not in answer.json()


@pytest.mark.parametrize("app", [_starlette, _flask])
def test_only_get_is_answered(app: Callable[[Bank], Any], bank: Bank) -> None:
    with app(bank) as client:
        answer = client.post(f"{PATH}/?gid=gid-1") if app is _starlette else client.post(f"{PATH}?gid=gid-1")
        assert answer.status_code == 405
    assert bank.rows("select * from tallystick_barrier where op = 'msg'") == []


@pytest.mark.parametrize("app", [_around_an_asgi_app, _flask])
def test_everything_else_goes_to_the_application(app: Callable[[Bank], Any], bank: Bank) -> None:
    with app(bank) as client:
        assert "other" in client.get("/other").text
        assert client.get("/nowhere").status_code == 404


def test_an_asynchronous_connection_may_be_opened(bank: Bank) -> None:
    engine = create_async_engine(bank.url("sqlite+aiosqlite"), poolclass=NullPool)
    commit(bank, "gid-1")
    with asgi_client(handlers.asgi(lambda: engine.connect().start())) as client:
        assert client.get("/?gid=gid-1").status_code == 200
        assert client.get("/?gid=gid-2").status_code == 409


def test_a_table_of_dtm_can_be_used_by_name(bank: Bank) -> None:
    bank.run("create table dtm as select * from tallystick_barrier")
    bank.run("create unique index dtm_key on dtm (gid, branch_id, op, barrier_id)")
    with wsgi_client(handlers.wsgi(bank.open, table="dtm")) as client:
        assert client.get("/?gid=gid-1").status_code == 409
    assert bank.rows("select gid from dtm where op = 'msg'") == [("gid-1",)]


def test_a_broker_finds_the_outcome_by_url(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    """The producer is gone; its web application answers for it. No group of live members is needed."""
    app = FastAPI()
    app.mount(PATH, handlers.asgi(lambda: sqlite3.connect(bank.path)))
    with asgi_server(app) as url, lossy_proxy(broker.port) as proxy:
        ts = Client(proxy.url, group=group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = b"\xa6commit"
        gid = pay(ts, bank, topic, 1, check=CheckBack(url=f"{url}{PATH}/", after=0.2))
        assert ts._core.latest is not None
        assert not ts._core.latest.producer.answering
        ts.close(timeout=0.01)
        eventually(lambda: values_in(broker.url, topic) == [1])
        with Client(broker.url) as other:
            assert other.outcome(gid) == "committed"
