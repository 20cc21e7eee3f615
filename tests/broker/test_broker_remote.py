"""A broker whose store is on a server: asked beside the event loop, and no end when the server does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hindered import HinderedServer
from inner_broker import Inside, inside

from eventually import eventually_async
from tallystick.broker import broker as broker_module
from tallystick.broker import writer
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence
from tallystick.core.calls import OutgoingCall
from tallystick.core.clock import SystemClock
from tallystick.core.errors import Moved, StorageFailed, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Check, Commit, Prepare, Send
from tallystick.core.wire import CheckPoll, ReceiveRequest, ResetRequest, TopicSpec

MESSAGES = [OutgoingMessage("orders", b"v")]


@contextlib.asynccontextmanager
async def remote(server: HinderedServer) -> AsyncIterator[Inside]:
    async with inside(server.opened(), SystemClock()) as broker:
        yield broker


# --- nobody asks on the event loop ---------------------------------------------------------------------------------


async def _receive_and_ack(door: BrokerDoor) -> None:
    (held, *_) = await door.receive("g", ReceiveRequest("orders"))
    await door.batch([Ack("g", [held.receipt])])


def _refused_or_done(work: Awaitable[Any]) -> Awaitable[Any]:
    async def run() -> None:
        with contextlib.suppress(TallystickError):
            await work

    return run()


_CALLS = [OutgoingCall("http://127.0.0.1:9/", b"{}")]
WAYS: dict[str, Callable[[BrokerDoor], Any]] = {
    "batch": lambda door: door.batch([Send(MESSAGES), Send(MESSAGES, "sent"), Prepare("a", "shop", MESSAGES)]),
    "do": lambda door: door.do(Prepare("called", "shop", MESSAGES, calls=_CALLS)),
    "do_and_show": lambda door: door.do_and_show(Commit("a")),
    "commit_of_group": lambda door: door.commit_of_group(Commit("a"), "shop"),
    "new_gid": lambda door: door.new_gid(),
    "new_gid_of": lambda door: door.new_gid_of("app"),
    "resolve": lambda door: door.resolve("called", "committed"),
    "resume": lambda door: _refused_or_done(door.resume("a")),
    "hurry": lambda door: _refused_or_done(door.hurry("a")),
    "hurry_all": lambda door: door.hurry_all(0, 10),
    "resume_calls": lambda door: _refused_or_done(door.resume_calls("called")),
    "stop_calls": lambda door: _refused_or_done(door.stop_calls("called")),
    "subscribe": lambda door: door.subscribe("t", "http://127.0.0.1:9/", ""),
    "unsubscribe": lambda door: door.unsubscribe("t", "http://127.0.0.1:9/"),
    "drop_call_topic": lambda door: _refused_or_done(door.drop_call_topic("t")),
    "put_topic": lambda door: door.put_topic("made", TopicSpec(queues=2)),
    "delete_topic": lambda door: door.delete_topic("made"),
    "trim": lambda door: door.trim("orders", {0: 0}),
    "receive": _receive_and_ack,
    "reset_group": lambda door: door.reset_group("g", ResetRequest("orders", "earliest")),
    "forget_app": lambda door: _refused_or_done(door.forget_app("app")),
    "transaction": lambda door: door.transaction("a"),
    "transactions": lambda door: door.transactions(None, None, None, 10),
    "whole": lambda door: door.whole("called", 1_000),
    "wholes": lambda door: door.wholes(None, None, 10),
    "calls": lambda door: door.calls("called"),
    "list_calls": lambda door: door.list_calls(None, None, 10),
    "call_topics": lambda door: door.call_topics(),
    "call_hosts": lambda door: door.call_hosts(),
    "called_hosts": lambda door: door.called_hosts(),
    "groups": lambda door: door.groups(),
    "stored_offsets": lambda door: door.stored_offsets("g", "orders"),
    "ledger": lambda door: _refused_or_done(door.ledger("app")),
    "ledgers": lambda door: door.ledgers("", 10),
    "splits": lambda door: door.splits("transactions", None, 4),
    "page": lambda door: door.page("transactions", 10),
    "info": lambda door: door.info(),
    "topic": lambda door: door.topic("orders"),
    "known_topic": lambda door: door.known_topic("orders"),
    "offsets_at": lambda door: door.offsets_at("orders", 0),
    "queues_of": lambda door: door.queues_of(["orders", "other"]),
    "fetch": lambda door: door.fetch("orders", 0, 0, 10, 1_000_000, 0),
    "ends": lambda door: door.ends(None, None, 0),
    "wait_for_calls": lambda door: door.wait_for_calls("called", 0),
    "poll_checks": lambda door: door.poll_checks(CheckPoll("shop", "m", 1, 0)),
    "caller_of": lambda door: door.caller_of(Evidence()),
    "take_turn": lambda door: door.take_turn("topic/orders", "one"),
    "give_turn_back": lambda door: door.give_turn_back("topic/orders", "one"),
    "whoami": lambda door: door.whoami(),
    "now_ms": lambda door: door.now_ms(),
    "cluster": lambda door: door.cluster(),
    "not_ready": lambda door: door.not_ready(),
    "answered": lambda door: door.answered("route", 200),
    "metrics": lambda door: door.metrics(),
    "families": lambda door: door.families(),
}
# It says that it blocks; those who use it are seen here, and in the tests of the HTTP interface.
BLOCKS = {"read"}
NO_WAYS = {"limits", "of", "open", "store_id"}


async def test_no_way_through_the_door_asks_the_server_on_the_event_loop() -> None:
    assert {name for name in vars(BrokerDoor) if not name.startswith("_")} - BLOCKS - NO_WAYS == set(WAYS)
    server = HinderedServer()
    async with remote(server) as broker:
        for way in WAYS.values():
            found = way(broker.door)
            if asyncio.iscoroutine(found):
                await found
        with pytest.raises(AssertionError, match="on the event loop"):
            broker.door.read("orders", 0, 0, 10, 1_000)  # the server would have noticed


# --- a server that is slow, silent or away -------------------------------------------------------------------------


class Heartbeat:
    """The longest time that the event loop did not come round."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[Heartbeat]:
    made = Heartbeat()
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_while_the_server_is_slow_the_event_loop_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "COUNT_SECONDS", 0.5)
    server = HinderedServer()
    async with remote(server) as broker:
        await broker.do(Send(MESSAGES))
        server.seconds = 2.0
        async with heartbeat() as heart:
            work = [
                asyncio.create_task(broker.do(Send(MESSAGES))),
                asyncio.create_task(broker.door.fetch("orders", 0, 0, 10, 1_000_000, 0)),
                asyncio.create_task(broker.door.info()),
            ]
            assert broker.door.not_ready() is None
            assert broker.door.known_topic("orders").name == "orders"
            assert b"tallystick_store_round_trips" in await broker.door.metrics()
            assert not any(one.done() for one in work)
            server.seconds = 0.0
            await asyncio.gather(*work)
        assert heart.longest < 1.0


async def test_while_the_server_is_away_everybody_is_told_why_and_work_goes_on_when_it_is_back() -> None:
    server = HinderedServer()
    async with remote(server) as broker, heartbeat() as heart:
        await broker.do(Prepare("kept", "shop", MESSAGES, Check(after_ms=60_000)))
        server.away = "the server is shutting down"
        told = r"^the server is shutting down \(the shared store cannot be used\)$"
        with pytest.raises(StorageFailed, match=told) as refused:
            await broker.do(Prepare("refused", "shop", MESSAGES))
        assert (refused.value.status, refused.value.retryable) == (503, True)
        for look in (broker.door.transaction("kept"), broker.door.fetch("orders", 0, 0, 10, 1_000, 0)):
            with pytest.raises(StorageFailed, match="the server is shutting down"):
                await look
        assert "the server is shutting down" in (broker.door.not_ready() or "")
        assert b"tallystick_store_failed 1.0" in await broker.door.metrics()
        server.away = ""

        async def ready() -> bool:
            return broker.door.not_ready() is None

        await eventually_async(ready, "ready again")
        await broker.do(Commit("kept"))
        assert (await broker.view("kept")).state == "committed"
        with pytest.raises(TallystickError, match="refused is not known"):
            await broker.door.transaction("refused")
        assert heart.longest < 1.0


async def test_a_store_that_failed_is_tried_again_though_nobody_asks_for_anything() -> None:
    server = HinderedServer()
    store = server.opened()
    made: list[Any] = []
    async with inside() as broker:  # for its clock and metrics alone
        inner = broker.broker
        alone = writer.Writer(
            store, inner.clock, writer.SpaceGuard(None, 0), 1_000_000, made.append, inner.metrics.commit_seconds
        )
        server.away = "gone"
        with pytest.raises(StorageFailed):
            await alone.submit([Send(MESSAGES)])
        server.away = ""

        async def works() -> bool:
            return store.failure() is None

        await eventually_async(works, "the store to work again")
        await alone.stop()
    await asyncio.to_thread(store.close)


async def test_who_comes_while_the_server_is_silent_is_refused_and_who_waited_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = HinderedServer()
    async with remote(server) as broker, heartbeat() as heart:
        await broker.do(Prepare("kept", "shop", MESSAGES, Check(after_ms=60_000)))
        monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.3)
        server.speaks.clear()
        waiting = asyncio.create_task(broker.do(Commit("kept")))

        async def silent() -> bool:
            return "has not answered for" in (broker.door.not_ready() or "")

        await eventually_async(silent, "not ready, because the server is silent")
        with pytest.raises(StorageFailed, match="has not answered for"):
            await broker.do(Send(MESSAGES))
        assert not waiting.done(), "nothing is told of what may or may not be durable"
        monkeypatch.undo()
        server.speaks.set()
        await waiting
        assert (await broker.view("kept")).state == "committed"
        assert broker.door.not_ready() is None
        assert heart.longest < 1.0


async def test_work_that_waits_behind_a_refused_statement_is_refused_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin a wait of its own, and take twice the limit of a request."""
    monkeypatch.setattr(writer, "SLOW_SECONDS", 0.0)
    store, made = HinderedServer().opened(), list[Any]()
    begun, ends = threading.Event(), threading.Event()

    def refused(_: Any) -> None:
        begun.set()
        ends.wait(60)
        raise StorageFailed("another session holds a lock")

    async with inside() as broker:  # for its clock and metrics alone
        inner = broker.broker
        alone = writer.Writer(
            store, inner.clock, writer.SpaceGuard(None, 0), 1_000_000, made.append, inner.metrics.commit_seconds
        )
        first = alone.look(refused)
        await asyncio.to_thread(begun.wait, 60)
        behind = (alone.submit([Send(MESSAGES)]), alone.look(lambda _: "seen"))
        ends.set()
        for work in (first, *behind):
            with pytest.raises(StorageFailed, match="another session holds a lock"):
                await work
        assert await alone.look(lambda _: "seen") == "seen"
        assert not made, "nothing of it was carried out"
        await alone.stop()
    await asyncio.to_thread(store.close)


async def test_a_broker_ends_while_the_server_is_silent_once_it_speaks_again() -> None:
    server = HinderedServer()
    broker = Broker(load_config(flags={"store": "memory"}, environ={}), server.opened())
    door, later = broker.door(), threading.Timer(1.5, server.speaks.set)
    await door.do(Send(MESSAGES))
    async with heartbeat() as heart:
        server.speaks.clear()
        reading = [asyncio.create_task(door.fetch("orders", 0, 0, 10, 1_000, 0)) for _ in range(40)]
        await asyncio.sleep(0)
        later.start()
        await broker.close()
        await asyncio.gather(*reading, return_exceptions=True)
    later.join()
    assert heart.longest < 1.0


async def test_a_superseded_broker_reads_nothing_more_to_anybody() -> None:
    server = HinderedServer()
    async with remote(server) as broker:
        await broker.do(Send(MESSAGES))
        await asyncio.to_thread(server.claim, "another")
        with pytest.raises(Moved, match="another owner since"):
            await broker.do(Send(MESSAGES))
        with pytest.raises(Moved, match="another owner since"):
            await broker.door.fetch("orders", 0, 0, 10, 1_000, 0)
