"""What the parts of the asynchronous client share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tallystick.client.brokers import Broker
from tallystick.client.core import ClientCore
from tallystick.client.message import Message
from tallystick.client.transport import parse_address
from tallystick.core.ops import ClientOp, OpResult


class ApiBase:
    """Sends operations to the broker that they belong to."""

    _core: ClientCore

    def _broker(self, address: str | None) -> Broker:
        """The broker that a caller names, or the one that new work goes to."""
        brokers = self._core.runtime().brokers
        return brokers.for_new()[0] if address is None else brokers.at(parse_address(address))

    async def _on_gid(self, gid: str, op: ClientOp) -> OpResult | None:
        brokers = self._core.runtime().brokers
        broker = brokers.only or await brokers.of_gid(gid)
        return await broker.ops.run(op, self._core.settings.timeout)

    async def _settle(self, messages: Message | Sequence[Message], op: Callable[[list[str]], ClientOp]) -> None:
        """One operation for each broker that the messages came from."""
        receipts: dict[str, list[str]] = {}
        for message in [messages] if isinstance(messages, Message) else messages:
            receipts.setdefault(message.broker, []).append(message.receipt)
        brokers, timeout = self._core.runtime().brokers, self._core.settings.timeout
        await asyncio.gather(*(brokers.at(address).ops.run(op(some), timeout) for address, some in receipts.items()))


def was_duplicate(result: OpResult | None) -> bool:
    return result is not None and result.duplicate
