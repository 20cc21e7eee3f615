"""What a client does without a block: transactions by hand, messages, calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from tallystick.client.base.arguments import (
    check_choice,
    check_flag,
    checked_check,
    checked_count,
    checked_list,
    checked_mapping,
    checked_offsets,
    checked_tags,
    checked_text,
)
from tallystick.client.base.calls import CallOptions, outgoing_call, policy_of, remark_of, wait_seconds
from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.message import Message, outgoing
from tallystick.client.base.settings import CheckBack, Settings, parse_address
from tallystick.client.base.times import milliseconds, milliseconds_or_none
from tallystick.client.connection import levels, questions
from tallystick.client.connection.levels import Level, Sent
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.questions import Fetched, Start, wait_for_calls
from tallystick.client.runtime import ClientCore
from tallystick.core.calls import CallsView, OutgoingCall, Protocol
from tallystick.core.errors import InvalidRequest, NotFound
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
    Send,
)
from tallystick.core.wire import (
    BrokerInfo,
    CheckPoll,
    CheckRequest,
    GroupView,
    ReceiveRequest,
    ResetRequest,
    TopicSpec,
    TopicView,
    TransactionView,
)

_RECEIVED = "Give a message that receive() returned, or a list of them."


class Operations:
    """Operations on the brokers that they belong to.

    With several brokers, `broker` names the one to ask by its address; `subscribe` listens to all of them. On a cluster
    all stores are asked as one, whose queues are numbered through; `broker` may name a single store,
    `http://broker:7440/stores/<id>`, and its own queues.
    """

    _core: ClientCore
    _settings: Settings

    async def _broker(self, address: str | None) -> tuple[BrokerPeer, float]:
        """The broker that a caller names, or the one that new work goes to; and what is left of the call's timeout."""
        brokers = self._core.runtime().brokers
        deadline = Deadline(self._settings.timeout)
        preferred = await brokers.for_questions(deadline.left())
        broker = preferred if address is None else brokers.at(parse_address(address, "broker"))
        return broker.for_a_call(), deadline.left()

    async def _on_gid(self, gid: str, op: ClientOp) -> OpResult | None:
        brokers = self._core.runtime().brokers
        deadline = Deadline(self._settings.timeout)
        broker = brokers.only or await brokers.of_gid(gid, deadline.left())
        return await broker.ops.run(op, deadline.left())

    async def _settle(self, messages: Message | Sequence[Message], op: Callable[[list[str]], ClientOp]) -> None:
        """One operation for each broker that the messages came from."""
        receipts: dict[str, list[str]] = {}
        given = [messages] if isinstance(messages, Message) else checked_list(messages, Message, "messages", _RECEIVED)
        for message in given:
            receipts.setdefault(message.broker, []).append(message.receipt)
        brokers, timeout = self._core.runtime().brokers, self._settings.timeout
        await asyncio.gather(*(brokers.at(address).ops.run(op(some), timeout) for address, some in receipts.items()))

    # Transactions, for services that keep their own truth of an outcome; `transaction()` does all of this by itself

    def new_gid(self, *, key: str | None = None) -> str:
        """A new gid. It names the store of the broker that new transactions go to, once that is known. On a cluster the
        order of messages with one `key` is kept if you give it here: it names the store. With `key`, the first call of
        a `Client` waits until a broker has answered, for at most `timeout`. An `AsyncClient` knows the brokers inside
        `async with`, and after the first call that is awaited."""
        if key is not None:
            self._core.begin()
        return self._core.new_gid(key)

    async def prepare(
        self,
        gid: str,
        messages: Sequence[OutgoingMessage],
        *,
        calls: Sequence[OutgoingCall] = (),
        call_options: CallOptions | None = None,
        check: CheckBack | None = None,
        check_after: float | None = None,
        source: str = "",
    ) -> bool:
        """Store half messages and calls; True if they were there already. Somebody must be able to answer a check-back.

        Messages are made with `outgoing`, calls with `outgoing_call`.
        """
        settings = self._settings
        runtime = self._core.runtime()
        group = settings.needs_group("prepare")
        how = (checked_check(check) or settings.check).on_the_wire(
            checked_text(source, "source"), settings.check_after if check_after is None else check_after
        )
        deadline = Deadline(settings.timeout)
        halves, made_calls = _made(messages), _made_calls(calls)
        await levels.check_counts(runtime.brokers, halves, made_calls)
        broker = runtime.brokers.only or await runtime.brokers.of_gid(gid, deadline.left())
        options = policy_of(call_options)
        runtime.prepares = True
        op = Prepare(check_gid(gid), group, halves, how, runtime.member, made_calls, options, remark_of(call_options))
        return _was_duplicate(await broker.ops.run(broker.check(op), deadline.left()))

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
        checked_count(index, "index", 0)
        op = PreparePart(check_gid(part, "part"), _made(messages), index, milliseconds_or_none(ttl, "ttl"))
        return _was_duplicate(await self._on_gid(check_gid(gid), op))

    async def commit(self, gid: str, parts: Sequence[PartRef] = (), *, wait: bool | float = False) -> bool:
        """Give a transaction the outcome `committed`; True if it had it already.

        With `wait` (True: 60 s, or seconds) this stays until each of its calls was answered once, and raises
        `CallsNotFinished` unless all of them are done.
        """
        seconds = wait_seconds(wait)
        claimed = checked_list(parts, PartRef, "parts", "Give [PartRef(...), ...].")
        duplicate = _was_duplicate(await self._on_gid(gid, Commit(check_gid(gid), claimed)))
        if seconds:
            broker = await self._core.runtime().brokers.of_gid(gid)
            await wait_for_calls(broker, gid, seconds, surely_there=False)
        return duplicate

    async def rollback(self, gid: str, parts: Sequence[str] = ()) -> bool:
        """Give a transaction the outcome `rolled_back`; True if it had it already."""
        dropped = checked_list(parts, str, "parts", "Give the names of parts.")
        return _was_duplicate(await self._on_gid(gid, Rollback(check_gid(gid), dropped)))

    async def transaction_state(self, gid: str) -> TransactionView:
        """What the broker knows of a transaction; `NotFound` if nothing."""
        deadline = Deadline(self._settings.timeout)
        broker = await self._core.runtime().brokers.of_gid(check_gid(gid), deadline.left())
        await broker.for_a_call().hear_first(min(self._settings.commit_wait, deadline.left() / 2))
        return await questions.transaction(broker, gid, deadline.left())

    async def outcome(self, gid: str) -> Outcome | None:
        """The outcome of a transaction; None if it has none, or is not known here."""
        try:
            state = (await self.transaction_state(gid)).state
        except NotFound:
            return None
        return state if state in ("committed", "rolled_back") else None

    async def poll_checks(
        self, group: str, *, max: int = 100, wait: float = 20.0, broker: str | None = None
    ) -> list[CheckRequest]:
        """Wait to be asked for outcomes of a group, for services that answer by themselves."""
        runtime = self._core.runtime()
        most = checked_count(max, "max", 1)
        poll = CheckPoll(check_name(group, "group"), f"{runtime.member}.poll", most, milliseconds(wait, "wait"))
        peer, seconds = await self._broker(broker)
        return await questions.poll_checks(peer, poll, min(questions.MARGIN_SECONDS, seconds))

    async def answer_checks(self, answers: Mapping[str, Answer], *, broker: str | None = None) -> None:
        """Answer what `poll_checks` of the same broker asked."""
        given = checked_mapping(answers, "answers", "Give answers={gid: 'committed'}.")
        for gid, answer in given.items():
            check_gid(gid, "answers")
            check_choice(answer, "answers", get_args(Answer))
        op = AnswerChecks(given)
        peer, seconds = await self._broker(broker)
        await peer.ops.run(op, seconds)

    # Messages: sent without a transaction, fetched by offset, received under lease

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
        return await levels.send(self._core.runtime().brokers, _made(messages), level, gid, self._core.stats)

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
        check_name(topic, "topic")
        checked_count(queue, "queue", 0)
        checked_count(offset, "offset", 0)
        checked_count(max, "max", 1)
        milliseconds(wait, "wait")
        peer, seconds = await self._broker(broker)
        return await questions.fetch(peer, topic, queue, offset, max, wait, seconds)

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
        check_name(group, "group")
        check_flag(ordered, "ordered", "With True, the messages of a queue come in order.")
        check_choice(start, "start", get_args(Start))
        request = ReceiveRequest(
            check_name(topic, "topic"),
            checked_count(max, "max", 1),
            milliseconds(wait, "wait"),
            milliseconds(invisible, "invisible"),
            ordered,
            start,
            checked_tags(tags),
            self._core.runtime().member,
        )
        peer, seconds = await self._broker(broker)
        return await questions.receive(peer, group, request, min(questions.MARGIN_SECONDS, seconds))

    async def ack(self, group: str, messages: Message | Sequence[Message]) -> None:
        """The messages are done. `StaleLease` if a lease had passed to another consumer; the others count."""
        check_name(group, "group")
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
        check_name(group, "group")
        check_flag(dead, "dead", "With True, the messages go to the dead-letter topic.")
        checked_text(reason, "reason")
        delay_ms = milliseconds_or_none(delay, "delay")
        await self._settle(messages, lambda receipts: Nack(group, receipts, delay_ms, dead, reason))

    async def renew(self, group: str, messages: Message | Sequence[Message], *, invisible: float = 30.0) -> None:
        """Keep messages for `invisible` seconds from now."""
        check_name(group, "group")
        invisible_ms = milliseconds(invisible, "invisible")
        await self._settle(messages, lambda receipts: Renew(group, receipts, invisible_ms))

    async def offsets(self, group: str, topic: str, *, broker: str | None = None) -> GroupView:
        """The offsets that a group stored in the broker, with the lag of each queue."""
        peer, seconds = await self._broker(broker)
        return await questions.offsets(peer, group, topic, seconds)

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
        guard = None if expected is None else checked_offsets(expected, "expected")
        op = CommitOffsets(check_name(group, "group"), check_name(topic, "topic"), checked_offsets(offsets), guard)
        peer, seconds = await self._broker(broker)
        await peer.ops.run(op, seconds)

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
        if (to, offsets, at).count(None) != 2:
            raise InvalidRequest("to: exactly one of to, offsets and at is needed. Give to='earliest'.", field="to")
        if to is not None:
            check_choice(to, "to", get_args(Start))
        request = ResetRequest(
            check_name(topic, "topic"),
            to,
            None if offsets is None else checked_offsets(offsets),
            milliseconds_or_none(at, "at"),
        )
        peer, seconds = await self._broker(broker)
        return await questions.reset_group(peer, group, request, seconds)

    async def topics(self, *, broker: str | None = None) -> list[TopicView]:
        """All topics of a broker; of the preferred one, unless an address is given."""
        peer, seconds = await self._broker(broker)
        return await questions.topics(peer, seconds)

    async def topic(self, name: str, *, broker: str | None = None) -> TopicView:
        """One topic: its queues, their first and next offsets, its retention."""
        peer, seconds = await self._broker(broker)
        return await questions.topic(peer, name, seconds)

    async def create_topic(self, name: str, *, queues: int | None = None, retention: float | None = None) -> TopicView:
        """Create a topic, or change it, on every broker of this client; the view of the preferred one. A cluster has it
        as a whole, on all of its stores."""
        if queues is not None:
            checked_count(queues, "queues", 1)
        spec = TopicSpec(queues, milliseconds_or_none(retention, "retention"))
        brokers = await self._core.runtime().brokers.for_topics()
        timeout = self._settings.timeout
        views = await asyncio.gather(
            *(questions.put_topic(broker.for_a_call(), name, spec, timeout) for broker in brokers)
        )
        return views[0]

    async def info(self, *, broker: str | None = None) -> BrokerInfo:
        """What a broker says of itself."""
        peer, seconds = await self._broker(broker)
        return await peer.info(seconds)

    # Calls: messages with a URL, which the broker delivers itself, again and again until they are answered

    async def call(
        self,
        url: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        delay: float | None = None,
        protocol: Protocol = "http",
        call_options: CallOptions | None = None,
        gid: str | None = None,
        wait: bool | float = False,
    ) -> Sent:
        """Have the broker call a URL. Once this returns the call is durable, and is made until it succeeds.

        A gid that was used before makes no second call. With `wait` (True: 60 s, or seconds) this stays for the first
        answer, and raises `CallsNotFinished` unless it was a success.
        """
        one = outgoing_call(url, body, headers=headers, timeout=timeout, delay=delay, protocol=protocol)
        return await self.send_calls([one], call_options=call_options, gid=gid, wait=wait)

    async def send_calls(
        self,
        calls: Sequence[OutgoingCall],
        *,
        call_options: CallOptions | None = None,
        gid: str | None = None,
        wait: bool | float = False,
    ) -> Sent:
        """Have the broker make several calls (of `outgoing_call`), in order or concurrently; see `call`."""
        seconds = wait_seconds(wait)
        what = Send([], gid, _made_calls(calls), policy_of(call_options), remark_of(call_options))
        sent = await levels.send_calls(self._core.runtime().brokers, what)
        if seconds:
            broker = await self._core.runtime().brokers.of_gid(sent.gid or "")
            await wait_for_calls(broker, sent.gid or "", seconds)
        return sent

    async def calls(self, gid: str) -> CallsView:
        """What became of the calls of a transaction; `NotFound` if there are none."""
        deadline = Deadline(self._settings.timeout)
        broker = await self._core.runtime().brokers.of_gid(check_gid(gid), deadline.left())
        return await questions.calls(broker.for_a_call(), gid, 0.0, deadline.left())


def _made(messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    return checked_list(messages, OutgoingMessage, "messages", "Give [outgoing(topic, value), ...].")


def _made_calls(calls: Sequence[OutgoingCall]) -> list[OutgoingCall]:
    return checked_list(calls, OutgoingCall, "calls", "Give [outgoing_call(url, body), ...].")


def _was_duplicate(result: OpResult | None) -> bool:
    return result is not None and result.duplicate
