"""A broker inside the test's own event loop, on the memory store, with its time in hand."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from eventually import SECONDS, eventually_async
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.broker.door import raise_refusal
from tallystick.core.clock import Clock, ManualClock
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Answer, AnswerChecks, Check, ClientOp, OpResult, Prepare
from tallystick.core.wire import CheckPoll, CheckRequest, TransactionView
from tallystick.store.protocol import BrokerOp, Store

T = TypeVar("T")

# What runs for the broker's whole life.
LIFELONG = {
    "calls",
    "check-back",
    "alerts",
    "sweep PromoteDelayed",
    "sweep ExpireParts",
    "sweep ExpireTombstones",
    "sweep TrimTopics",
}


class Inside:
    """What tests do with a broker, in few words."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.door = broker.door()

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.broker.clock, ManualClock)
        return self.broker.clock

    async def do(self, op: ClientOp) -> OpResult:
        """One operation of a client; a refusal is raised."""
        (result,) = await self.door.batch([op])
        raise_refusal(result)
        return result or OpResult()

    async def prepare(self, *gids: str, group: str = "shop", member: str | None = None, **check: Any) -> None:
        """Transactions with one message each; due at once unless `after_ms` says otherwise."""
        wishes = Check(**{"after_ms": 0, **check})
        for gid in gids:
            await self.do(Prepare(gid, group, [OutgoingMessage("orders", gid.encode())], wishes, member))

    async def answer(self, **answers: Answer) -> None:
        await self.do(AnswerChecks(answers))

    async def one(self, op: BrokerOp) -> Any:
        """One operation that the broker makes; a refusal is raised."""
        return await self.door._act(op)

    def look(self, see: Callable[[Store], T]) -> asyncio.Future[T]:
        """See the store itself, between two group commits."""
        return self.broker._writer.look(see)

    async def poll(
        self, member: str = "m", group: str = "shop", most: int = 100, ms: int = 5_000
    ) -> list[CheckRequest]:
        return await self.door.poll_checks(CheckPoll(group, member, most, ms))

    def polling(self, member: str, **rest: Any) -> asyncio.Task[list[CheckRequest]]:
        """A poll that waits beside the test."""
        return asyncio.create_task(self.poll(member, **rest))

    async def view(self, gid: str) -> TransactionView:
        found = await self.look(lambda store: store.transaction(gid))
        assert found is not None, f"{gid} is not known"
        return found

    async def becomes(self, gid: str, seconds: float = SECONDS, **expected: Any) -> TransactionView:
        """Wait until the transaction's view has these values."""

        async def look() -> TransactionView | None:
            view = await self.view(gid)
            return view if all(getattr(view, name) == value for name, value in expected.items()) else None

        try:
            return await eventually_async(look, f"{gid} with {expected}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {await self.view(gid)}") from None

    def metric(self, name: str, **labels: str) -> float:
        """The value of a series; one that was never touched is 0."""
        return self.broker.metrics.registry.get_sample_value(f"tallystick_{name}", labels) or 0.0

    def visible(self) -> int:
        """How many messages have become visible in `orders`."""
        topic = self.broker._store.topic("orders")
        return sum(topic.ends) if topic else 0


async def rounds(count: int = 3) -> None:
    """Time for the check-back to look around a few times."""
    await asyncio.sleep(0.11 * count)


@contextlib.asynccontextmanager
async def inside(store: Store | None = None, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Inside]:
    """A broker that must be in order when the test leaves it: everything still runs, no task died unseen."""
    flags = {"store": "memory", "check_interval": "2s", "check_interval_cap": "30s", "check_timeout": "5s", **settings}
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    broker = Broker(load_config(flags=flags, environ={}), store, clock or ManualClock())
    try:
        yield Inside(broker)
        assert {task.get_name() for task in asyncio.all_tasks()} >= LIFELONG
    finally:
        await broker.close()
    gc.collect()  # a task that ended with an error which nobody looked at tells so when it is collected
    assert not unseen
