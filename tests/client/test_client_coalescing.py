"""Operations that are handed in at the same time travel together, and fail alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from client_support import messages_in, values_in

from brokers import BrokerProcess, running_broker
from cutting_proxy import lossy_proxy
from tallystick import AsyncClient, errors, outgoing
from tallystick.client.connection.coalescer import Coalescer, CoalescerLimits
from tallystick.client.connection.loop_wire import LoopWire
from tallystick.core.errors import BrokerUnreachable
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Send


@asynccontextmanager
async def coalescer(url: str, **limits: int) -> AsyncIterator[Coalescer]:
    wire = LoopWire(url)
    made = Coalescer(url, wire.post, limits=CoalescerLimits(**limits), request_timeout=2.0)
    try:
        yield made
    finally:
        await made.close(1.0)
        wire.close()


async def test_operations_of_many_tasks_share_requests(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url) as ts:
        sent = await asyncio.gather(*(ts.send(topic, number) for number in range(1_000)))
        ops = ts._core.runtime().brokers.for_new()[0].ops
        assert ops.requests <= 10
        assert len({one.gid for one in sent}) == 1_000
    assert values_in(broker.url, topic) == list(range(1_000))


async def test_each_caller_gets_its_own_result(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url, group="g") as ts:
        gids = [ts.new_gid() for _ in range(50)]
        await asyncio.gather(*(ts.prepare(gid, [outgoing(topic, gid)]) for gid in gids[::2]))
        results = await asyncio.gather(*(ts.commit(gid) for gid in gids), return_exceptions=True)
    assert [type(result) for result in results] == [bool, errors.NotFound] * 25


async def test_an_operation_by_itself_is_sent_at_once(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url) as ts:
        await ts.send(topic, 0)
        began = time.monotonic()
        for number in range(20):
            await ts.send(topic, number)
        assert time.monotonic() - began < 20


async def test_a_request_stays_below_its_limits(broker: BrokerProcess, topic: str) -> None:
    async with coalescer(broker.url, request_ops=10, request_bytes=50_000) as ops:
        small = [ops.run(Send([OutgoingMessage(topic, b"0")]), 5) for _ in range(40)]
        await asyncio.gather(*small)
        assert ops.requests >= 4
        before = ops.requests
        await asyncio.gather(
            *(ops.run(Send([OutgoingMessage(topic, b'"' + b"x" * 30_000 + b'"')]), 5) for _ in range(4))
        )
        assert ops.requests - before == 4


async def test_a_message_larger_than_a_request_travels_alone(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url) as ts:
        await asyncio.gather(*(ts.send(topic, b"x" * 3_000_000) for _ in range(3)), ts.send(topic, b"small"))
    assert sorted(len(message.value) for message in messages_in(broker.url, topic)) == [
        5,
        3_000_000,
        3_000_000,
        3_000_000,
    ]


async def test_one_bad_operation_fails_alone(broker: BrokerProcess, topic: str) -> None:
    """The broker refuses the whole request; the callers do not notice, except for the one."""
    async with coalescer(broker.url, in_flight=1) as ops:
        good = [Send([OutgoingMessage(topic, str(number).encode())]) for number in range(99)]
        bad = Send([OutgoingMessage("not a topic!", b"1")])
        results = await asyncio.gather(
            *(ops.run(op, 5) for op in [*good[:40], bad, *good[40:]]), return_exceptions=True
        )
    refused = results.pop(40)
    assert isinstance(refused, errors.InvalidRequest)
    assert refused.field == "messages[0].topic"
    assert not any(isinstance(result, Exception) for result in results)
    assert values_in(broker.url, topic) == list(range(99))


async def test_several_bad_operations_fail_and_the_rest_does_not(broker: BrokerProcess, topic: str) -> None:
    async with coalescer(broker.url, in_flight=1) as ops:
        topics = ["?" if number % 10 == 0 else topic for number in range(50)]
        work = [Send([OutgoingMessage(name, str(number).encode())]) for number, name in enumerate(topics)]
        results = await asyncio.gather(*(ops.run(op, 5) for op in work), return_exceptions=True)
    assert [isinstance(result, errors.InvalidRequest) for result in results] == [
        number % 10 == 0 for number in range(50)
    ]
    assert values_in(broker.url, topic) == [number for number in range(50) if number % 10]


async def test_a_refusal_that_names_nobody_is_narrowed_down(broker: BrokerProcess, topic: str) -> None:
    """More than the broker takes in one request: halves are tried until each fits or is alone."""
    with running_broker(max_request_bytes=20_000, max_message_bytes=10_000) as strict:
        async with coalescer(strict.url, in_flight=1) as ops:
            work = [Send([OutgoingMessage(topic, b'"' + b"x" * 3_000 + b'"')]) for _ in range(16)]
            work.append(Send([OutgoingMessage(topic, b"x" * 30_000)]))
            results = await asyncio.gather(*(ops.run(op, 5) for op in work), return_exceptions=True)
        assert isinstance(results.pop(), errors.TooLarge)
        assert not any(isinstance(result, Exception) for result in results)
        assert len(messages_in(strict.url, topic)) == 16


async def test_what_the_broker_is_known_to_refuse_is_not_sent(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url, group="g") as ts:
        await ts.info()
        ops = ts._core.runtime().brokers.for_new()[0].ops
        with pytest.raises(errors.TooLarge, match="the limit is 4194304"):
            await ts.send(topic, b"x" * 5_000_000)
        with pytest.raises(errors.TooLarge, match="at most 1000 messages"):
            await ts.prepare(ts.new_gid(), [outgoing(topic, 1)] * 1_001)
        assert ops.requests == 0


# Retries


@pytest.mark.fault
async def test_operations_wait_for_a_broker_that_comes_back(topic: str) -> None:
    with running_broker() as broker:
        async with AsyncClient(broker.url, group="g", timeout=20) as ts:
            await ts.send(topic, 0)
            broker.kill()
            waiting = [asyncio.ensure_future(ts.send(topic, number)) for number in range(1, 50)]
            await asyncio.sleep(0.3)
            assert not any(one.done() for one in waiting)
            broker.restart()
            await asyncio.gather(*waiting)
        assert values_in(broker.url, topic) == list(range(50))


async def test_nothing_reached_is_told_apart_from_nothing_heard(topic: str) -> None:
    with running_broker() as broker:
        async with AsyncClient(broker.url, timeout=0.5) as ts:
            await ts.send(topic, 0)
            os.kill(broker.pid, signal.SIGSTOP)
            with pytest.raises(errors.BrokerUnavailable, match="it may have acted") as silent:
                await ts.send(topic, 1)
            assert not isinstance(silent.value, BrokerUnreachable)
            os.kill(broker.pid, signal.SIGCONT)
    async with AsyncClient(broker.url, timeout=0.5) as ts:
        with pytest.raises(BrokerUnreachable, match="it has not acted"):
            await ts.send(topic, 1)


async def test_a_lost_answer_stays_uncertain_when_the_broker_is_gone_afterwards(topic: str) -> None:
    with running_broker() as broker, lossy_proxy(broker.port) as proxy:
        async with AsyncClient(proxy.url, timeout=1.0) as ts:
            proxy.losing, proxy.lose_at_most = b"\xa4send", 1
            sending = asyncio.ensure_future(ts.send(topic, 1))
            while proxy.cut == 0:
                await asyncio.sleep(0.001)
            proxy.close()
            broker.kill()
            with pytest.raises(errors.BrokerUnavailable, match="it may have acted"):
                await sending


async def test_a_lost_answer_is_asked_for_again_and_the_operation_counts_once(
    broker: BrokerProcess, topic: str
) -> None:
    with lossy_proxy(broker.port) as proxy:
        async with AsyncClient(proxy.url, group="g") as ts:
            proxy.losing, proxy.lose_at_most = b"\xa4send", 2
            sent = await ts.send(topic, 1)
            assert sent.duplicate
            proxy.losing, proxy.lose_at_most = b"\xa6commit", 4
            gid = ts.new_gid()
            await ts.prepare(gid, [outgoing(topic, 2)])
            assert await ts.commit(gid) is True
        assert proxy.cut == 4
    assert values_in(broker.url, topic) == [1, 2]


async def test_the_queue_is_bounded(topic: str) -> None:
    with running_broker() as broker:
        async with coalescer(broker.url, in_flight=1, waiting_ops=5) as ops:
            await ops.run(Send([OutgoingMessage(topic, b"0")]), 5)
            os.kill(broker.pid, signal.SIGSTOP)
            first = asyncio.ensure_future(ops.run(Send([OutgoingMessage(topic, b"1")]), 10))
            await asyncio.sleep(0.05)
            waiting = [asyncio.ensure_future(ops.run(Send([OutgoingMessage(topic, b"2")]), 10)) for _ in range(5)]
            await asyncio.sleep(0.05)
            assert ops.full
            with pytest.raises(errors.Busy, match="this one was not sent"):
                await ops.run(Send([OutgoingMessage(topic, b"3")]), 0.2)
            later = asyncio.ensure_future(ops.run(Send([OutgoingMessage(topic, b"4")]), 10))
            os.kill(broker.pid, signal.SIGCONT)
            await asyncio.gather(first, *waiting, later)
        assert values_in(broker.url, topic) == [0, 1, 2, 2, 2, 2, 2, 4]


async def test_closing_sends_what_waits(broker: BrokerProcess, topic: str) -> None:
    ts = AsyncClient(broker.url)
    sending = [asyncio.ensure_future(ts.send(topic, number)) for number in range(200)]
    await asyncio.sleep(0)
    await ts.close()
    await asyncio.gather(*sending)
    assert values_in(broker.url, topic) == list(range(200))
    with pytest.raises(errors.TallystickError, match="closed"):
        await ts.send(topic, 1)


async def test_closing_without_a_broker_is_bounded_and_tells_those_who_wait(topic: str) -> None:
    ts = AsyncClient("http://127.0.0.1:9")
    sending = asyncio.ensure_future(ts.send(topic, 1))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await ts.close(timeout=0.3)
    assert time.monotonic() - began < 20
    with pytest.raises(errors.BrokerUnavailable, match="closed"):
        await sending


async def test_a_caller_that_leaves_does_not_take_its_operation_back(broker: BrokerProcess, topic: str) -> None:
    async with AsyncClient(broker.url, group="g") as ts:
        gid = ts.new_gid()
        await ts.prepare(gid, [outgoing(topic, 1)])
        leaving = asyncio.ensure_future(ts.commit(gid))
        await asyncio.sleep(0)
        leaving.cancel()
        await ts.send(f"{topic}-other", 1)
        assert await ts.outcome(gid) == "committed"


async def test_prepare_and_commit_of_one_transaction_never_share_a_request(broker: BrokerProcess, topic: str) -> None:
    """They could not: a caller commits only after its prepare was answered."""
    async with coalescer(broker.url) as ops:
        for number in range(5):
            gid = f"{topic}-{number}"
            await ops.run(Prepare(gid, "g", [OutgoingMessage(topic, str(number).encode())]), 5)
            await ops.run(Commit(gid), 5)
        assert ops.requests == 10
    assert values_in(broker.url, topic) == list(range(5))


async def test_everybody_is_told_however_short_their_time(topic: str) -> None:
    """Deadlines that fall between two sweeps, into pauses and onto requests: no caller is forgotten."""
    async with coalescer("http://127.0.0.1:9", in_flight=2, request_ops=8) as ops:
        send = Send([OutgoingMessage(topic, b"1")])
        waiting = [asyncio.ensure_future(ops.run(send, 0.01 + number * 0.003)) for number in range(200)]
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert all(isinstance(result, errors.BrokerUnavailable) for result in results)
