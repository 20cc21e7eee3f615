"""Check-back handlers in real web frameworks, and handlers of messages whose call alone runs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiosqlite
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
from tallystick import AsyncClient, CheckBack, Client, Message
from tallystick.barrier import adapt_sync, mark_committed, run_sync
from tallystick.client import handlers
from tallystick.client.answering.deciders import ask_decider
from tallystick.client.base.results import UnfinishedResult
from tallystick.client.base.workers import Workers
from tallystick.core.errors import InvalidRequest
from tallystick.dtm.branch import AsyncBranchBarrier, BranchBarrier
from tallystick.fastapi import Tallystick as ForFastApi
from tallystick.flask import Tallystick as ForFlask

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


# Handlers of messages whose call makes a generator or a coroutine

URL = "http://127.0.0.1:9"
WAYS: dict[str, dict[str, Any]] = {
    "lease": {},
    "inbox": {"exactly_once": True},
    "offset": {"exactly_once": True, "by": "offset"},
    "batch": {"exactly_once": True, "batch": 3},
    "batch by offset": {"exactly_once": True, "by": "offset", "batch": 3},
}
ways = pytest.mark.parametrize("way", WAYS)


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """An ordinary decorator."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


def yields(message: Message) -> Iterator[None]:
    yield


async def yields_async(message: Message) -> AsyncIterator[None]:
    yield


class Yields:
    def __call__(self, message: Message) -> Iterator[None]:
        yield

    def handle(self, message: Message) -> Iterator[None]:
        yield


GENERATORS: list[Callable[..., Any]] = [
    yields,
    yields_async,
    through(yields),
    through(yields_async),
    contextlib.contextmanager(yields),
    functools.partial(yields),
    functools.partial(through(functools.partial(yields_async))),
    Yields(),
    Yields().handle,
]
MAKERS: list[Callable[[], Any]] = [
    lambda: Client(URL, group="shop"),
    lambda: AsyncClient(URL, group="shop"),
    ForFlask,
    lambda: ForFastApi(URL),
]


@pytest.mark.parametrize("handler", GENERATORS)
@pytest.mark.parametrize("make", MAKERS)
def test_a_generator_function_is_no_handler(make: Callable[[], Any], handler: Callable[..., Any]) -> None:
    with pytest.raises(InvalidRequest, match="handler: a call of a generator function runs none of its code") as caught:
        make().subscribe("orders")(handler)
    assert caught.value.field == "handler"


class Coroutine:
    async def __call__(self, message: Message) -> None: ...


def test_an_async_handler_behind_a_partial_or_an_object_needs_an_async_client() -> None:
    for handler in (Coroutine(), Coroutine().__call__, functools.partial(Coroutine())):
        with pytest.raises(InvalidRequest, match="an async handler needs AsyncClient"):
            Client(URL, group="shop").subscribe("orders")(handler)
        AsyncClient(URL, group="shop").subscribe("orders")(handler)


def _options(way: str, open_connection: Any) -> dict[str, Any]:
    options = {"concurrency": 1, **WAYS[way]}
    return {**options, "exactly_once": open_connection} if options.pop("exactly_once", False) else options


def _give(url: str, topic: str) -> list[str]:
    with Client(url) as ts:
        ts.create_topic(topic, queues=1)
        for number in range(3):
            ts.send(topic, str(number))
    return ["0", "1", "2"]


def _coroutine(message: Any) -> Any:
    async def never() -> None: ...

    return never()


def _generator(message: Message) -> Any:
    return (None for _ in message.text)


def _async_generator(message: Message) -> Any:
    return yields_async(message)


@ways
@pytest.mark.parametrize("made", [_coroutine, _generator, _async_generator])
def test_on_threads_a_result_that_never_ran_is_a_failure(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, way: str, made: Callable[[Message], Any]
) -> None:
    """Each message fails at its first attempt, with the effect that was there before it, and has it at the second."""
    expected, noted = _give(broker.url, topic), []

    def handle(message: Message) -> Any:
        if message.attempt == 1:
            return made(message)
        noted.append(message.text)
        return None

    def handle_once(message: Message, connection: Any, tx: Any) -> Any:
        bank.note(connection, message.text)
        return made(message) if message.attempt == 1 else None

    options = _options(way, bank.open)
    with Client(broker.url, group=group) as ts:
        ts.subscribe(topic, **options)(handle if way == "lease" else handle_once)
        ts.start()
        eventually(lambda: ts.stats.handled == 3)
        assert ts.stats.handler_failures == 3
    assert (sorted(noted) if way == "lease" else bank.notes()) == expected


def test_such_a_message_becomes_a_dead_letter(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    _give(broker.url, topic)
    with Client(broker.url, group=group) as ts:
        ts.subscribe(topic, exactly_once=bank.open, max_attempts=1)(through(Coroutine().__call__))
        ts.start()
        eventually(lambda: ts.stats.handler_failures == 3)
        eventually(lambda: len(values_in(broker.url, f"dlq.{group}")) == 3)
    assert bank.rows("select * from tallystick_inbox") == []


@ways
@pytest.mark.parametrize("driver", ["sqlite3", "aiosqlite"])
async def test_an_async_client_awaits_what_a_decorator_returns(
    broker: BrokerProcess, bank: Bank, topic: str, group: str, way: str, driver: str
) -> None:
    expected, noted = await asyncio.to_thread(_give, broker.url, topic), []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        noted.append(message.text)

    async def handle_once(message: Message, connection: Any, tx: Any) -> None:
        added = connection.execute("insert into ledger (note) values (?)", (message.text,))
        if driver == "aiosqlite":
            await added

    opens = bank.open if driver == "sqlite3" else lambda: aiosqlite.connect(bank.path)
    async with AsyncClient(broker.url, group=group) as ts:
        ts.subscribe(topic, **_options(way, opens))(through(handle if way == "lease" else handle_once))
        await ts.start()
        await _until(lambda: ts.stats.handled == 3)
        assert ts.stats.handler_failures == 0
    assert (sorted(noted) if way == "lease" else bank.notes()) == expected


async def test_an_async_client_awaits_what_a_plain_function_returns(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    expected, loops = await asyncio.to_thread(_give, broker.url, topic), {}

    async def handle(message: Message) -> None:
        loops[message.text] = asyncio.get_running_loop()

    async with AsyncClient(broker.url, group=group) as ts:
        ts.subscribe(topic)(lambda message: handle(message))
        await ts.start()
        await _until(lambda: ts.stats.handled == 3)
        assert ts.stats.handler_failures == 0
    assert sorted(loops) == expected
    assert set(loops.values()) == {asyncio.get_running_loop()}


async def test_on_a_thread_with_a_connection_it_is_a_failure(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    await asyncio.to_thread(_give, broker.url, topic)
    async with AsyncClient(broker.url, group=group) as ts:
        ts.subscribe(topic, exactly_once=bank.open)(lambda message: _coroutine(message))
        await ts.start()
        await _until(lambda: ts.stats.handler_failures >= 3)
        assert ts.stats.handled == 0
    assert bank.rows("select * from tallystick_inbox") == []


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_decider_behind_a_decorator_is_awaited() -> None:
    class Knows:
        async def _decide(self, gid: str) -> str:
            return "committed"

        decide = through(_decide)

    assert await ask_decider(Workers("decider", 1), Knows(), ["g"]) == {"g": "committed"}  # type: ignore[arg-type]


async def test_a_branch_whose_effect_never_ran_leaves_no_row(bank: Bank) -> None:
    with bank.connection() as connection:
        for effect in (lambda _: _coroutine(None), lambda _: (None for _ in "")):
            with pytest.raises(UnfinishedResult):
                BranchBarrier("msg", "g", "01", "action").call(connection, effect)
        with pytest.raises(UnfinishedResult):
            await AsyncBranchBarrier("msg", "g", "01", "action").call(connection, lambda _: (None for _ in ""))
    assert bank.rows("select * from tallystick_barrier where op = 'action'") == []
