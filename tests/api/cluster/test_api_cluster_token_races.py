"""A token is put on the stores of a cluster while it is revoked there: in whatever order that comes to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.api.cluster.access import ClusterAccess
from tallystick.broker.broker import Broker
from tallystick.broker.caller import ANYBODY
from tallystick.broker.config import load_config
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import Conflict, NotFound, TallystickError
from tallystick.core.token_records import TokenRecord, TokenSpec, token_of

STORES = ("a", "b", "c")


class InOrder(ClusterAccess):
    """The stores are real; in which order they are asked, dice decide."""

    def __init__(self, doors: dict[str, BrokerDoor], dice: random.Random) -> None:
        self._owners: Any = SimpleNamespace(stores=lambda: list(doors))
        self._caller, self._doors, self._dice = ANYBODY, doors, dice
        self._waiting: list[asyncio.Future[None]] = []

    async def _ask(self, store: str, method: Any, *args: Any) -> Any:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn
        return await method(self._doors[store], *args)

    async def play(self, *works: Any) -> list[TallystickError | None]:
        tasks = [asyncio.create_task(work) for work in works]
        while not all(task.done() for task in tasks):
            for _ in range(50):  # so that whoever can ask next does
                await asyncio.sleep(0)
            if self._waiting:
                self._waiting.pop(self._dice.randrange(len(self._waiting))).set_result(None)
            else:
                await asyncio.sleep(0.001)
        return [error if isinstance(error := task.exception(), TallystickError) else task.result() for task in tasks]


@contextlib.asynccontextmanager
async def stores() -> Any:
    brokers = [Broker(load_config(flags={"store": "memory"}, environ={})) for _ in STORES]
    try:
        yield {name: broker.door() for name, broker in zip(STORES, brokers, strict=True)}
    finally:
        for broker in brokers:
            await broker.close()


def new_record(name: str) -> TokenRecord:
    return token_of(TokenSpec(name, ("reader",)), 0)[1]


@pytest.mark.parametrize("how", [lambda record: record.name, lambda record: (record.name, record.id)], ids=["", "id"])
async def test_what_was_revoked_while_it_was_put_is_nowhere_left(how: Callable[[TokenRecord], Any]) -> None:
    seen = set()
    async with stores() as doors:
        for seed in range(300):
            cluster, record = InOrder(doors, random.Random(seed)), new_record(f"n{seed}")
            named = how(record)
            put, dropped = await cluster.play(
                cluster.put_token(record), cluster.drop_token(*([named] if isinstance(named, str) else named))
            )
            having = [name for name, door in doors.items() if record.name in {one.name for one in await door.tokens()}]
            assert put is None or isinstance(put, Conflict), put
            assert dropped is None or isinstance(dropped, NotFound), dropped
            assert having == ([] if dropped is None or put is not None else list(STORES)), (seed, put, dropped)
            seen.add((put is None, dropped is None))
    assert seen >= {(True, True), (True, False), (False, True)}
