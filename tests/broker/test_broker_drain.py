"""The end of a broker: no new work, long polls go home, what was accepted is finished."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from inner_broker import inside

from brokers import running_broker
from raw_client import Gone, RawClient
from service_database import Service
from tallystick.core.errors import Draining, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, ClientOp, Commit, Prepare, PreparePart, Rollback, Send
from tallystick.core.wire import ReceiveRequest
from tallystick.store.protocol import PutTopic

MESSAGES = [OutgoingMessage("orders", b"v")]


# --- inside one process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op", [Prepare("new", "shop", MESSAGES), PreparePart("new", MESSAGES), Send(MESSAGES), Send(MESSAGES, "new")]
)
async def test_a_draining_broker_takes_no_new_messages(op: ClientOp) -> None:
    async with inside() as broker:
        broker.broker.drain()
        with pytest.raises(Draining):
            await broker.do(op)


async def test_a_draining_broker_still_resolves_and_acknowledges() -> None:
    async with inside() as broker:
        await broker.prepare("a", "b", "c")
        await broker.do(Send(MESSAGES))
        (held,) = await broker.door.receive("g", ReceiveRequest("orders"))
        broker.broker.drain()
        await broker.do(Commit("a"))
        await broker.do(Rollback("b"))
        await broker.do(AnswerChecks({"c": "committed"}))
        assert (await broker.do(Ack("g", [held.receipt]))).stale == []
        states = [(await broker.view(gid)).state for gid in ("a", "b", "c")]
        assert states == ["committed", "rolled_back", "committed"]


async def test_a_batch_with_one_new_message_is_refused_as_a_whole() -> None:
    async with inside() as broker:
        await broker.prepare("a")
        broker.broker.drain()
        with pytest.raises(Draining):
            await broker.door.batch([Commit("a"), Send(MESSAGES)], 100)
        assert (await broker.view("a")).state == "prepared"


async def test_long_polls_go_home_at_once_and_empty() -> None:
    async with inside() as broker:
        await broker.one(PutTopic("orders", 1))
        polls = [
            asyncio.create_task(broker.door.fetch("orders", 0, 0, 10, 1_000, 30_000)),
            asyncio.create_task(broker.door.receive("g", ReceiveRequest("orders", wait_ms=30_000))),
            broker.polling("m", ms=30_000),
        ]
        await asyncio.sleep(0.05)
        broker.broker.drain()
        piece, deliveries, checks = await asyncio.wait_for(asyncio.gather(*polls), 20)
        assert (piece.chunks, deliveries, checks) == ([], [], [])
        with pytest.raises(Draining):
            await broker.door.receive("g", ReceiveRequest("orders"))
        # Reading takes nothing away from anybody.
        assert (await broker.door.fetch("orders", 0, 0, 10, 1_000, 30_000)).chunks == []


async def test_what_was_handed_in_before_the_end_is_finished() -> None:
    async with inside() as broker:
        work = [asyncio.create_task(broker.do(Send(MESSAGES, f"s{number}"))) for number in range(200)]
        await asyncio.sleep(0)
    await asyncio.gather(*work)
    assert broker.visible() == 200
    with pytest.raises(Draining):
        await broker.do(Commit("late"))


async def test_the_end_comes_even_in_the_moment_that_something_wakes_the_check_back() -> None:
    for _ in range(5):
        async with asyncio.timeout(10), inside() as broker:
            await asyncio.sleep(0.01)
            broker.broker.checkback.resumed()  # its wait is over, and it is told to end, in the same moment


# --- a process -----------------------------------------------------------------------------------------------------


def test_sigterm_sends_long_polls_home_with_empty_answers_and_ends_with_code_0() -> None:
    with running_broker() as broker, ThreadPoolExecutor(3) as pool:
        clients = [RawClient(broker.url) for _ in range(3)]
        clients[0].json("PUT", "/v1/topics/orders", {"queues": 1})
        waits: list[Callable[[], Any]] = [
            lambda: clients[0].read("orders", 0, wait_ms=60_000)[0],
            lambda: clients[1].receive("g", "orders", wait_ms=60_000),
            lambda: clients[2].poll_checks("shop", wait_ms=60_000),
        ]
        futures = [pool.submit(wait) for wait in waits]
        time.sleep(0.3)
        assert not any(future.done() for future in futures)
        assert broker.stop() == 0
        assert [future.result() for future in futures] == [[], [], []]
        for client in clients:
            client.close()


def test_everything_acknowledged_before_sigterm_is_there_after_it() -> None:
    with running_broker() as broker:
        acknowledged: set[str] = set()
        unknown: set[str] = set()
        lock = threading.Lock()

        def produce(number: int) -> None:
            with RawClient(broker.url) as client:
                for count in range(100_000):
                    gid = f"w{number}-{count}"
                    try:
                        client.do(Send([OutgoingMessage("orders", gid.encode())], gid))
                    except (TallystickError, *Gone) as error:
                        if not isinstance(error, Draining):
                            with lock:
                                unknown.add(gid)
                        return
                    with lock:
                        acknowledged.add(gid)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        assert broker.stop() == 0
        for thread in threads:
            thread.join(20)
        broker.start()
        with RawClient(broker.url) as client:
            found = [one.value.decode() for one in client.messages("orders")]
        assert len(found) == len(set(found))
        assert acknowledged
        assert acknowledged <= set(found) <= acknowledged | unknown


def test_a_check_that_waits_in_a_database_does_not_hold_the_end_up(tmp_path: Path) -> None:
    service = Service(tmp_path / "service.db")
    settings = {"databases": {"bank": service.url}, "check_timeout": "60s"}
    with service.local_transaction("t"), running_broker(**settings) as broker:
        with RawClient(broker.url) as client:
            client.do(Prepare("t", "shop", MESSAGES, Check(via="database", target="bank", after_ms=0)))
            time.sleep(0.7)
        assert broker.stop() == 0
    with service.connection() as connection:
        assert connection.execute("select count(*) from tallystick_barrier where op = 'msg'").fetchone() == (0,)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_has_nothing_to_do_ends_by_itself(number: signal.Signals) -> None:
    with running_broker() as broker:
        assert broker.process is not None
        broker.process.send_signal(number)
        assert broker.wait() == 0
        assert "Traceback" not in broker.log_text()
