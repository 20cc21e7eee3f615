"""Messages: sent without a transaction, fetched by offset, received under lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tallystick.client import reading, sending
from tallystick.client.api_base import ApiBase
from tallystick.client.message import Message, outgoing
from tallystick.client.reading import Fetched, Start
from tallystick.client.sending import Level, Sent
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_name
from tallystick.core.ops import Ack, CommitOffsets, Nack, Renew
from tallystick.core.wire import BrokerInfo, GroupView, ReceiveRequest, ResetRequest, TopicSpec, TopicView


class MessagesApi(ApiBase):
    """With several brokers, `broker` names the one to ask by its address; `subscribe` listens to all of them."""

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        tag: str | None = None,
        delay: float | None = None,
        deliver_at: float | None = None,
        level: Level = 2,
        gid: str | None = None,
    ) -> Sent:
        """Send a message. Bytes go as they are, text as UTF-8, anything else as JSON.

        Level 0: queued and never waited for. 1: confirmed and retried, may arrive twice. 2: arrives once, by its gid.
        """
        message = outgoing(topic, value, key=key, headers=headers, tag=tag, delay=delay, deliver_at=deliver_at)
        return await self.send_many([message], level=level, gid=gid)

    async def send_many(self, messages: Sequence[OutgoingMessage], *, level: Level = 2, gid: str | None = None) -> Sent:
        """Send several messages (made with `outgoing`) together, as one operation."""
        return await sending.send(self._core, list(messages), level, gid)

    async def fetch(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max: int = 1_000,
        wait: float = 0.0,
        broker: str | None = None,
    ) -> Fetched:
        """Messages of a queue from `offset` on, in order; waits up to `wait` seconds for the first."""
        timeout = self._core.settings.timeout
        return await reading.fetch(self._broker(broker), topic, queue, offset, max, wait, timeout)

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        max: int = 32,
        wait: float = 0.0,
        invisible: float = 30.0,
        ordered: bool = False,
        start: Start = "earliest",
        tags: Sequence[str] | None = None,
        broker: str | None = None,
    ) -> list[Message]:
        """Take messages under a lease of `invisible` seconds; end each with `ack` or `nack`."""
        request = ReceiveRequest(
            check_name(topic, "topic"),
            max,
            round(wait * 1000),
            round(invisible * 1000),
            ordered,
            start,
            None if tags is None else list(tags),
            self._core.runtime().member,
        )
        return await reading.receive(self._broker(broker), group, request)

    async def ack(self, group: str, messages: Message | Sequence[Message]) -> None:
        """The messages are done. `StaleLease` if a lease had passed to another consumer; the others count."""
        await self._settle(messages, lambda receipts: Ack(group, receipts))

    async def nack(
        self,
        group: str,
        messages: Message | Sequence[Message],
        *,
        delay: float | None = None,
        dead: bool = False,
        reason: str = "",
    ) -> None:
        """Give messages back: again after `delay` seconds (default: the broker's backoff), or `dead` at once."""
        delay_ms = None if delay is None else round(delay * 1000)
        await self._settle(messages, lambda receipts: Nack(group, receipts, delay_ms, dead, reason))

    async def renew(self, group: str, messages: Message | Sequence[Message], *, invisible: float = 30.0) -> None:
        """Keep messages for `invisible` seconds from now."""
        await self._settle(messages, lambda receipts: Renew(group, receipts, round(invisible * 1000)))

    async def offsets(self, group: str, topic: str, *, broker: str | None = None) -> GroupView:
        """The offsets that a group stored in the broker, with the lag of each queue."""
        return await reading.offsets(self._broker(broker), group, topic, self._core.settings.timeout)

    async def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        expected: Mapping[int, int] | None = None,
        broker: str | None = None,
    ) -> None:
        """Store offsets in the broker; with `expected`, only if nobody moved them (`OffsetMoved`).

        Refused with `Conflict` for a group that takes the topic under leases, which `reset_group` moves; and with
        `OffsetOutOfRange` where the queue has no such offset (any more).
        """
        guard = None if expected is None else dict(expected)
        op = CommitOffsets(check_name(group, "group"), check_name(topic, "topic"), dict(offsets), guard)
        await self._broker(broker).ops.run(op, self._core.settings.timeout)

    async def reset_group(
        self,
        group: str,
        topic: str,
        *,
        to: Start | None = None,
        offsets: Mapping[int, int] | None = None,
        at: float | None = None,
        broker: str | None = None,
    ) -> GroupView:
        """Move a group to the `earliest` or `latest` message of a topic, to `offsets` of some queues, or to the time
        `at` (seconds since the epoch); where it is then.

        Messages that members hold are not theirs any more (`StaleLease`). A group that keeps its offsets in its own
        database (`by="offset"`) is refused with `Conflict`: it is moved there.
        """
        request = ResetRequest(
            check_name(topic, "topic"),
            to,
            None if offsets is None else dict(offsets),
            None if at is None else round(at * 1000),
        )
        return await reading.reset_group(self._broker(broker), group, request, self._core.settings.timeout)

    async def topics(self, *, broker: str | None = None) -> list[TopicView]:
        return await reading.topics(self._broker(broker), self._core.settings.timeout)

    async def topic(self, name: str, *, broker: str | None = None) -> TopicView:
        return await reading.topic(self._broker(broker), name, self._core.settings.timeout)

    async def create_topic(self, name: str, *, queues: int | None = None, retention: float | None = None) -> TopicView:
        """Create a topic, or change it, on every broker of this client; the view of the preferred one."""
        spec = TopicSpec(queues, None if retention is None else round(retention * 1000))
        brokers = self._core.runtime().brokers
        timeout = self._core.settings.timeout
        views = await asyncio.gather(*(reading.put_topic(broker, name, spec, timeout) for broker in brokers))
        return views[0]

    async def info(self, *, broker: str | None = None) -> BrokerInfo:
        """What a broker says of itself."""
        return await self._broker(broker).info()
