"""What the next owner of a store makes of what the last one held in memory: leases, calls, checks, counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from called_services import calls_of, done, lean, send
from inner_broker import Inside, inside, rounds

from eventually import eventually_async
from tallystick.core.clock import ManualClock
from tallystick.core.errors import Moved, StaleLease
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, Commit, Prepare, Send
from tallystick.core.wire import Delivery, ReceiveRequest
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.memory import MemoryCluster, MemoryServer
from tallystick.store.shared.opening import SharedStore

LEASE_MS = 30_000


class Shard:
    """One store in memory, and a clock that all its owners share."""

    def __init__(self) -> None:
        self._cluster, self._clock = MemoryCluster(), ManualClock()

    @contextlib.asynccontextmanager
    async def owner(self) -> AsyncIterator[Inside]:
        """A broker that has claimed it. Whoever owned it before runs on and does not know."""
        server = MemoryServer(self._cluster, 0)
        store = SharedStore(server, server.claim("test").epoch, StoreSettings())
        async with inside(store, self._clock) as broker:
            yield broker


async def _lent(broker: Inside) -> list[Delivery]:
    return await broker.door.receive("g", ReceiveRequest("orders", max=10, invisible_ms=LEASE_MS))


async def test_a_lease_of_the_old_owner_holds_with_the_new_one_and_never_with_both() -> None:
    shard = Shard()
    async with shard.owner() as old:
        await old.do(Send([OutgoingMessage("orders", b"1"), OutgoingMessage("orders", b"2")]))
        first, second = await _lent(old)
        async with shard.owner() as new:
            assert await _lent(new) == []
            with pytest.raises(Moved):
                await old.do(Ack("g", [first.receipt]))
            await new.do(Ack("g", [first.receipt]))
            new.clock.advance(LEASE_MS + 1)
            (again,) = await _lent(new)
            assert again.message.value == second.message.value
            with pytest.raises(StaleLease):
                await new.do(Ack("g", [second.receipt]))
            with pytest.raises(Moved):
                await old.do(Ack("g", [second.receipt]))


async def test_a_call_that_the_old_owner_is_making_is_made_again_and_settled_once() -> None:
    shard = Shard()
    async with lean() as service:
        service.answer = b""
        async with shard.owner() as old:
            await send(old, "t", f"{service.url}/in")

            async def called() -> bool:
                return bool(service.urls)

            await eventually_async(called, "the old owner calls")
            service.answer = b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"dtm_result":"SUCCESS"}'
            async with shard.owner() as new:
                await done(new, "t")
                (call,) = (await calls_of(new, "t")).calls
                assert (call.state, call.attempts) == ("done", 1)
                for transport in list(service.open):
                    transport.abort()  # the old owner's call has come to an end: whatever it makes of it, nobody asks
                await rounds()
                (call,) = (await calls_of(new, "t")).calls
                assert (call.state, call.attempts) == ("done", 1)


async def test_checks_that_the_old_owner_has_handed_out_are_answered_to_the_new_one() -> None:
    shard = Shard()
    async with shard.owner() as old:
        await old.prepare("a", "b")
        asked = {check.gid for check in await old.poll()}
        assert asked == {"a", "b"}
        async with shard.owner() as new:
            await new.do(AnswerChecks({"a": "committed"}))
            assert (await new.view("a")).state == "committed"
            with pytest.raises(Moved):
                await old.do(AnswerChecks({"b": "rolled_back"}))
            polling = new.polling("m", ms=60_000)
            await rounds()
            assert not polling.done(), "it is out until its time is up"
            new.clock.advance(20_001)
            assert [check.gid for check in await polling] == ["b"]


async def test_the_new_owner_counts_and_shows_what_the_old_one_did() -> None:
    shard = Shard()
    async with shard.owner() as old:
        await old.prepare("a", "b", "c", after_ms=60_000)
        await old.do(Commit("a"))
        await old.do(Prepare("late", "shop", [OutgoingMessage("orders", b"x", delay_ms=5_000)], Check(after_ms=60_000)))
        await old.do(Commit("late"))
        await _lent(old)
        before = await old.look(lambda store: (store.counts(), store.topics(), store.lags(10)))
        async with shard.owner() as new:
            assert await new.look(lambda store: (store.counts(), store.topics(), store.lags(10))) == before
            assert new.visible() == 1
            new.clock.advance(5_001)

            async def promoted() -> bool:
                return new.visible() == 2

            await eventually_async(promoted, "what was delayed")
            await asyncio.sleep(0)
            assert old.visible() == 1
