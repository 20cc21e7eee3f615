"""The client for asyncio."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import msgspec

from tallystick.barrier.adapters import adapt
from tallystick.core.errors import NotFound
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid, check_name
from tallystick.core.ops import (
    Ack,
    Answer,
    AnswerChecks,
    ClientOp,
    Commit,
    CommitOffsets,
    Nack,
    OpResult,
    Outcome,
    PartRef,
    Prepare,
    PreparePart,
    Renew,
    Rollback,
)
from tallystick.core.wire import (
    BrokerInfo,
    CheckPoll,
    CheckRequest,
    GroupView,
    ReceiveRequest,
    TopicSpec,
    TopicView,
    TransactionView,
)

from . import cleanup, reading, sending
from .block import Block, ModeName, PrepareOrder
from .brokers import Broker
from .consuming import GRACE_SECONDS
from .core import REDRIVE_SECONDS, ClientCore
from .message import Message, outgoing
from .reading import Fetched, Start
from .sending import Level, Sent
from .settings import DEFAULT_URL, CheckBack, OpenConnection, checked_settings
from .stats import Stats
from .subscription import By, Handler, Subscription, checked_subscription
from .transaction import AsyncTransaction

CLOSE_SECONDS = 5.0


class AsyncClient:
    """Transactions, messages and consumers, on the event loop that it is used on.

    `urls` is one address, several with commas between them, or a list. `group` is the producer group, whose members
    answer check-backs for each other. `timeout` bounds every call; `commit_wait` how long a block stays for the
    broker's word after its local commit. `check` and `check_after` say how and when the broker asks for the outcome of
    a transaction. `database` opens a connection to the service's own database: with it the client answers check-backs
    and re-drives the outbox from the start, and not only after its first transaction.
    """

    def __init__(
        self,
        urls: str | Iterable[str] = DEFAULT_URL,
        *,
        group: str | None = None,
        member: str | None = None,
        timeout: float = 10.0,
        commit_wait: float = 2.0,
        check: CheckBack | None = None,
        check_after: float | None = None,
        database: OpenConnection | None = None,
        barrier_table: str = "tallystick_barrier",
        max_in_flight: int = 2,
    ) -> None:
        settings = checked_settings(
            urls,
            group=group,
            member=member,
            timeout=timeout,
            commit_wait=commit_wait,
            check=check or CheckBack(),
            check_after=check_after,
            barrier_table=barrier_table,
            max_in_flight=max_in_flight,
        )
        self._core = ClientCore(settings, database)
        self._subscriptions: list[Subscription] = []
        self._stop_asked: asyncio.Event | None = None

    # Life

    async def __aenter__(self) -> AsyncClient:
        await self._core.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Stop consumers, send what waits (for at most `timeout` seconds) and let all connections go."""
        await self._core.close(timeout)

    @property
    def stats(self) -> Stats:
        """Counts of what happened without being raised."""
        return self._core.stats

    # Transactions with a database

    def transaction(
        self,
        connection: Any,
        *,
        mode: ModeName = "check-back",
        prepare: PrepareOrder = "late",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool = True,
    ) -> AsyncTransaction:
        """A block whose local transaction and messages happen together or not at all.

        `mode` is `check-back` (half messages wait in the broker), `outbox` (messages wait in the database) or
        `consumer-dedup` (messages go to the consumer, which waits for their outcome). With `prepare="early"` the block
        calls `await tx.prepare()` after its sends and before its changes. With `wait=False` it does not stay for the
        broker's word after the local commit.
        """
        adapter = adapt(connection)
        block = Block(self._core, adapter, mode=mode, prepare=prepare, check=check, gid=gid, wait=wait)
        return AsyncTransaction(block, None if adapter.is_async else self._core.runtime().turn)

    async def redrive(self, open_connection: OpenConnection, *, every: float = REDRIVE_SECONDS) -> None:
        """Send, in the background, what died processes left in the outbox of a database."""
        self._core.databases.add(open_connection)
        self._core.runtime().outbox.drive(open_connection, every)

    async def clean(
        self,
        connection: Any,
        *,
        older_than: float,
        groups: Sequence[str] = (),
        unused_for: float | None = None,
    ) -> dict[str, int]:
        """Delete old barrier, inbox and prepared rows, never younger than is safe; how many of each.

        `older_than` is in seconds. `groups` are the consumer groups that keep their inbox in this database; without
        them inbox and prepared rows stay. Refused if any broker cannot be asked.
        """
        runtime = self._core.runtime()
        plan = await cleanup.plan(runtime.brokers, older_than, groups, self._core.settings.timeout)
        return await cleanup.carry_out_async(adapt(connection), plan, self._core.settings.barrier_table)

    # Operations on transactions

    def new_gid(self) -> str:
        """A new gid, which names the store of the broker that new transactions go to now, if that is known."""
        return self._core.new_gid()

    async def prepare(
        self,
        gid: str,
        messages: Sequence[OutgoingMessage],
        *,
        check: CheckBack | None = None,
        check_after: float | None = None,
        source: str = "",
    ) -> bool:
        """Store half messages; True if they were there already. Somebody must be able to answer a check-back."""
        settings = self._core.settings
        runtime = self._core.runtime()
        group = settings.needs_group("prepare")
        how = (check or settings.check).on_the_wire(source, settings.check_after if check_after is None else check_after)
        broker = await runtime.brokers.of_gid(check_gid(gid))
        op = Prepare(gid, group, broker.check(list(messages)), how, runtime.member)
        return _duplicate(await broker.ops.run(op, settings.timeout))

    async def prepare_part(
        self,
        part: str,
        messages: Sequence[OutgoingMessage],
        *,
        gid: str,
        index: int = 0,
        ttl: float | None = None,
    ) -> bool:
        """Store half messages as a part, on the broker of `gid`, whose commit may claim it; True if it was there."""
        ttl_ms = None if ttl is None else round(ttl * 1000)
        op = PreparePart(check_gid(part, "part"), list(messages), index, ttl_ms)
        return _duplicate(await self._on_gid(gid, op))

    async def commit(self, gid: str, parts: Sequence[PartRef] = ()) -> bool:
        """Give a transaction the outcome `committed`; True if it had it already."""
        return _duplicate(await self._on_gid(gid, Commit(gid, list(parts))))

    async def rollback(self, gid: str, parts: Sequence[str] = ()) -> bool:
        """Give a transaction the outcome `rolled_back`; True if it had it already."""
        return _duplicate(await self._on_gid(gid, Rollback(gid, list(parts))))

    async def transaction_state(self, gid: str) -> TransactionView:
        """What the broker knows of a transaction; `NotFound` if nothing."""
        broker = await self._core.runtime().brokers.of_gid(check_gid(gid))
        return await reading.transaction(broker, gid, self._core.settings.timeout)

    async def outcome(self, gid: str) -> Outcome | None:
        """The outcome of a transaction; None if it has none, or is not known here."""
        try:
            state = (await self.transaction_state(gid)).state
        except NotFound:
            return None
        return state if state in ("committed", "rolled_back") else None

    async def poll_checks(self, group: str, *, max: int = 100, wait: float = 20.0, broker: str | None = None) -> list[CheckRequest]:
        """Wait to be asked for outcomes of a group, for services that answer by themselves."""
        runtime = self._core.runtime()
        poll = CheckPoll(check_name(group, "group"), f"{runtime.member}.poll", max, round(wait * 1000))
        return await reading.poll_checks(self._broker(broker), poll)

    async def answer_checks(self, answers: Mapping[str, Answer], *, broker: str | None = None) -> None:
        """Answer what `poll_checks` of the same broker asked."""
        op = AnswerChecks(dict(answers))
        await self._broker(broker).ops.run(op, self._core.settings.timeout)

    # Messages without a transaction

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

    async def send_many(
        self, messages: Sequence[OutgoingMessage], *, level: Level = 2, gid: str | None = None
    ) -> Sent:
        """Send several messages (made with `outgoing`) together, as one operation."""
        return await sending.send(self._core, list(messages), level, gid)

    # Reading

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
        """Store offsets in the broker; with `expected`, only if nobody moved them (`OffsetMoved`)."""
        guard = None if expected is None else dict(expected)
        op = CommitOffsets(check_name(group, "group"), check_name(topic, "topic"), dict(offsets), guard)
        await self._broker(broker).ops.run(op, self._core.settings.timeout)

    async def topics(self, *, broker: str | None = None) -> list[TopicView]:
        return await reading.topics(self._broker(broker), self._core.settings.timeout)

    async def topic(self, name: str, *, broker: str | None = None) -> TopicView:
        return await reading.topic(self._broker(broker), name, self._core.settings.timeout)

    async def create_topic(
        self, name: str, *, queues: int | None = None, retention: float | None = None
    ) -> TopicView:
        """Create a topic, or change it, on every broker of this client; the view of the preferred one."""
        spec = TopicSpec(queues, None if retention is None else round(retention * 1000))
        brokers = self._core.runtime().brokers
        timeout = self._core.settings.timeout
        views = await asyncio.gather(*(reading.put_topic(broker, name, spec, timeout) for broker in brokers))
        return views[0]

    async def info(self, *, broker: str | None = None) -> BrokerInfo:
        """What a broker says of itself."""
        return await self._broker(broker).info()
