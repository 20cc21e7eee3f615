"""The seam for transactions in another manner on top of a client; `tallystick.dtm` is one.

    seam = seam_of(client)
    seam.play_sync(script, adapter)          # or: await seam.play_async(script, adapter)

Whoever stands on it writes scripts (`transactions/script.py`) and knows nothing else of a client's inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.operations.barrier import Decision, decide
from tallystick.barrier.statement import Operation
from tallystick.client.answering.deciders import ask_decider
from tallystick.client.async_client import AsyncClient
from tallystick.client.base.databases import Door, within
from tallystick.client.base.settings import Decider, Settings
from tallystick.client.client import Client
from tallystick.client.connection.portal import FromThreads
from tallystick.client.operations import Operations
from tallystick.client.runtime import ClientCore
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.modes import ModeName, new_block
from tallystick.client.transactions.producer import Producer
from tallystick.client.transactions.script import FindWay, Script, play_async, play_sync
from tallystick.client.transactions.transaction import Transaction
from tallystick.core.errors import TallystickError

T = TypeVar("T")


class ClientSeam:
    """What may be used of a client. Coroutines, those of `operations` too, belong on its event loop: see `OnLoop`."""

    def __init__(
        self, operations: Operations, core: ClientCore, producer: Callable[[], Producer], way: FindWay
    ) -> None:
        self.operations = operations
        self._core = core
        self._producer = producer
        self._way = way

    @property
    def settings(self) -> Settings:
        return self._core.settings

    @property
    def given_door(self) -> Door | None:
        """Into the database that the client was told of at its start."""
        return self._core.databases.given

    def decider(self, source: str) -> Decider | None:
        return self._core.databases.decider(source)

    def producer(self) -> Producer:
        return self._producer()

    def new_block(self, adapter: Adapter, **options: Any) -> Block:
        """A block in check-back mode; for the options see `Block`."""
        return new_block("check-back", self.settings, self._producer, adapter, **options)

    def transaction(self, adapter: Adapter, *, mode: ModeName = "check-back", **options: Any) -> Transaction:
        """`Client.transaction` on an adapter that was made already."""
        return Transaction(new_block(mode, self.settings, self._producer, adapter, **options), self._way)

    # On the client's event loop

    async def given_source(self) -> str | None:
        """The name of the database behind `given_door`; None if there is none."""
        return await within(self.settings.timeout, self._core.given_source())

    async def run(self, door: Door, operation: Operation[T]) -> T:
        """Run an operation of the barrier on a connection of its own."""
        return await self._core.runtime().run(door, operation)

    async def decide(self, gid: str, truth: Door | Decider) -> Decision:
        """What the barrier behind a door, or a decider, says of a transaction."""
        return await within(self.settings.timeout, self._decide(gid, truth))

    async def _decide(self, gid: str, truth: Door | Decider) -> Decision:
        workers = self._core.runtime().workers
        if isinstance(truth, Decider):
            return (await ask_decider(workers, truth, [gid]))[gid]
        return await self._core.runtime().run(truth, decide(gid, table=self.settings.barrier_table))

    # Playing

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """From a thread: run a coroutine function on the client's event loop, and wait."""
        return self._way().call(function)

    def play_sync(self, script: Script[T], adapter: Adapter | None) -> T:
        return play_sync(script, adapter, self._way)

    async def play_async(self, script: Script[T], adapter: Adapter | None) -> T:
        """On the event loop, where synchronous connections are used one at a time."""
        blocks = adapter is not None and not adapter.is_async
        async with self._core.runtime().turn if blocks else contextlib.nullcontext():
            return await play_async(script, adapter)


def seam_of(client: Client | AsyncClient) -> ClientSeam:
    if isinstance(client, Client):
        return ClientSeam(client._client, client._core, client._producer, client._way)
    return ClientSeam(client, client._core, lambda: client._core.runtime().producer, _no_way)


def _no_way() -> FromThreads:
    raise TallystickError("an AsyncClient is used on its own event loop; use Client on threads")
