"""`tallystick.fastapi`: clients that live as long as the application, its check-back, its consumers."""

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from client_support import Bank, messages_in
from fastapi import Depends, FastAPI

import tallystick
from asgi import asgi_server
from brokers import BrokerProcess
from eventually import eventually
from tallystick import AsyncClient, CheckBack, Client, Message
from tallystick.client.base.settings import ClientOptions
from tallystick.errors import TallystickError
from tallystick.fastapi import Tallystick
from tallystick.local import free_port


def service(ts: Tallystick, bank: Bank, topic: str, app: FastAPI) -> FastAPI:
    """The same order twice: by a coroutine function, and by a plain one."""

    @app.post("/async/{item}")
    async def on_the_loop(item: str, client: Annotated[AsyncClient, Depends(ts.get_async_client)]) -> str:
        with bank.connection() as conn:
            async with client.transaction(conn, wait=True) as tx:
                bank.note(conn, item)
                tx.send(topic, item)
        return tx.gid

    @app.post("/sync/{item}")
    def on_a_thread(item: str, client: Annotated[Client, Depends(ts.get_client)]) -> str:
        with bank.connection() as conn, client.transaction(conn, wait=True) as tx:
            bank.note(conn, item)
            tx.send(topic, item)
        return tx.gid

    @app.post("/lost/{item}")
    def goes_no_further_than_its_prepare(item: str) -> str:
        gid = ts.client.new_gid()
        ts.client.prepare(gid, [tallystick.outgoing(topic, item)])
        return gid

    return app


def test_both_clients_serve_and_a_consumer_runs_in_the_lifespan(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    ts = Tallystick(broker.url, group=group)
    app = service(ts, bank, topic, FastAPI(lifespan=ts.lifespan))
    seen: list[str] = []

    @ts.subscribe(topic, type=str)
    async def handle(message: Message[str]) -> None:
        seen.append(message.data)

    @ts.subscribe(topic, group=f"{group}.inbox", exactly_once=bank.open)
    def handle_once(message: Message, conn: sqlite3.Connection) -> None:
        bank.note(conn, f"handled {message.text}")

    with asgi_server(app, lifespan="on") as url:
        assert httpx.post(f"{url}/async/tea").status_code == 200
        assert httpx.post(f"{url}/sync/ink").status_code == 200
        eventually(lambda: bank.notes() == ["handled ink", "handled tea", "ink", "tea"])
        eventually(lambda: sorted(seen) == ["ink", "tea"])
        blocking = ts.client
    with pytest.raises(TallystickError, match="closed"):
        blocking.send(topic, "too late")
    with pytest.raises(TallystickError, match="the lifespan has not begun"):
        _ = ts.async_client


def test_a_lifespan_of_ones_own_has_it_inside_and_may_come_again(broker: BrokerProcess, topic: str) -> None:
    steps: list[str] = []
    ts = Tallystick(broker.url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with ts.lifespan(app):
            steps.append((await ts.async_client.info()).store)
            yield
        steps.append("end")

    app = FastAPI(lifespan=lifespan)
    for _ in range(2):  # as in the tests of a service, each with an application's life of its own
        with asgi_server(app, lifespan="on"):
            ts.client.send(topic, "hello")
    assert len(messages_in(broker.url, topic)) == 2
    assert [steps[1], steps[3]] == ["end", "end"]


async def test_a_second_application_is_refused(broker: BrokerProcess) -> None:
    ts = Tallystick(broker.url)
    async with ts.lifespan():
        with pytest.raises(TallystickError, match="one Tallystick for each application"):
            async with ts.lifespan():
                pass
        assert (await ts.async_client.info()).store, "the first one goes on"


def test_check_backs_come_to_the_mounted_path(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    port = free_port()
    ts = Tallystick(broker.url, group=group, check=CheckBack(after=0.2), database=None)
    app = service(ts, bank, topic, FastAPI(lifespan=ts.lifespan))
    ts.mount(app, "/tallystick/check", bank.open, public_url=f"http://127.0.0.1:{port}/")
    with asgi_server(app, lifespan="on", port=port) as url:
        gid = httpx.post(f"{url}/lost/coffee").json()
        told = ts.client.transaction_state(gid)
        eventually(lambda: ts.client.outcome(gid) == "rolled_back")
    assert (told.check_via, told.check_target) == ("url", f"http://127.0.0.1:{port}/tallystick/check/")


def test_a_mount_needs_a_database() -> None:
    with pytest.raises(TallystickError, match="mount: give open_connection"):
        Tallystick("http://127.0.0.1:1").mount(FastAPI())


async def test_consumers_can_have_a_process_of_their_own(broker: BrokerProcess, topic: str, group: str) -> None:
    ts = Tallystick(broker.url, group=group, consume=False)
    seen: list[str] = []

    @ts.subscribe(topic)
    def handle(message: Message) -> None:
        seen.append(message.text)

    async with ts.lifespan():
        await ts.async_client.send(topic, "one")
        assert ts.async_client.stats.handled == 0
    running = asyncio.create_task(ts.run())
    await asyncio.to_thread(eventually, lambda: seen == ["one"])
    await ts.async_client.stop()
    await running


def test_the_environment_says_what_the_code_does_not(
    broker: BrokerProcess, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_URL", broker.url)
    monkeypatch.setenv("TALLYSTICK_GROUP", group)
    ts = Tallystick()
    with asgi_server(FastAPI(lifespan=ts.lifespan), lifespan="on"):
        assert ts.client.prepare("env-gid." + group, [tallystick.outgoing(topic, "x")]) is False
        assert ts.client.transaction_state("env-gid." + group).group == group
        ts.client.rollback("env-gid." + group)


def test_the_options_of_extensions_are_those_of_the_client() -> None:
    given_by_name = {"self", "urls", "group", "database"}
    of_client: dict[str, Any] = {
        name: one.annotation
        for name, one in inspect.signature(Client.__init__).parameters.items()
        if name not in given_by_name
    }
    found = {name: getattr(kind, "__forward_arg__", kind) for name, kind in ClientOptions.__annotations__.items()}
    assert found == of_client
