"""The operations for callers that wait on a thread, written out: what an editor and a type checker show is theirs.

Signatures and docstrings are those of `operations.py`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tallystick.client.base.calls import CallOptions
from tallystick.client.base.message import Message
from tallystick.client.base.settings import CheckBack
from tallystick.client.connection.levels import Level, Sent
from tallystick.client.connection.questions import Fetched, Start
from tallystick.client.operations import Operations
from tallystick.client.runtime import ClientCore
from tallystick.core.calls import CallsView, OutgoingCall, Protocol
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Answer, Outcome, PartRef
from tallystick.core.wire import BrokerInfo, CheckRequest, GroupView, TopicView, TransactionView

T = TypeVar("T")


class BlockingOperations:
    """Operations on the brokers that they belong to.

    With several brokers, `broker` names the one to ask by its address; `subscribe` listens to all of them.
    """

    _core: ClientCore
    _operations: Operations

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the client's own event loop, and wait."""
        raise NotImplementedError

    # Transactions, for services that keep their own truth of an outcome; `transaction()` does all of this by itself

    def new_gid(self, *, key: str | None = None) -> str:
        """A new gid. It names the store of the broker that new transactions go to, once that is known. On a cluster the
        order of messages with one `key` is kept if you give it here: it names the store. With `key`, the first call of
        a `Client` waits until a broker has answered, for at most `timeout`. An `AsyncClient` knows the brokers inside
        `async with`, and after the first call that is awaited."""
        latest = self._core.latest
        unknown = key is not None if latest is None else not latest.brokers.looked
        if unknown and not self._core.closed:
            self._call(self._core.look)
        return self._core.new_gid(key)

    def prepare(
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
        return self._call(
            lambda: self._operations.prepare(
                gid,
                messages,
                calls=calls,
                call_options=call_options,
                check=check,
                check_after=check_after,
                source=source,
            )
        )

    def prepare_part(
        self,
        part: str,
        messages: Sequence[OutgoingMessage],
        *,
        gid: str,
        index: int = 0,
        ttl: float | None = None,
    ) -> bool:
        """Store half messages as a part, on the broker of `gid`, whose commit may claim it; True if it was there."""
        return self._call(lambda: self._operations.prepare_part(part, messages, gid=gid, index=index, ttl=ttl))

    def commit(self, gid: str, parts: Sequence[PartRef] = (), *, wait: bool | float = False) -> bool:
        """Give a transaction the outcome `committed`; True if it had it already.

        With `wait` (True: 60 s, or seconds) this stays until each of its calls was answered once, and raises
        `CallsNotFinished` unless all of them are done.
        """
        return self._call(lambda: self._operations.commit(gid, parts, wait=wait))

    def rollback(self, gid: str, parts: Sequence[str] = ()) -> bool:
        """Give a transaction the outcome `rolled_back`; True if it had it already."""
        return self._call(lambda: self._operations.rollback(gid, parts))

    def transaction_state(self, gid: str) -> TransactionView:
        """What the broker knows of a transaction; `NotFound` if nothing."""
        return self._call(lambda: self._operations.transaction_state(gid))

    def outcome(self, gid: str) -> Outcome | None:
        """The outcome of a transaction; None if it has none, or is not known here."""
        return self._call(lambda: self._operations.outcome(gid))

    def poll_checks(
        self, group: str, *, max: int = 100, wait: float = 20.0, broker: str | None = None
    ) -> list[CheckRequest]:
        """Wait to be asked for outcomes of a group, for services that answer by themselves."""
        return self._call(lambda: self._operations.poll_checks(group, max=max, wait=wait, broker=broker))

    def answer_checks(self, answers: Mapping[str, Answer], *, broker: str | None = None) -> None:
        """Answer what `poll_checks` of the same broker asked."""
        self._call(lambda: self._operations.answer_checks(answers, broker=broker))

    # Messages: sent without a transaction, fetched by offset, received under lease

    def send(
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
        return self._call(
            lambda: self._operations.send(
                topic,
                value,
                key=key,
                headers=headers,
                tag=tag,
                delay=delay,
                deliver_at=deliver_at,
                level=level,
                gid=gid,
            )
        )

    def send_many(self, messages: Sequence[OutgoingMessage], *, level: Level = 2, gid: str | None = None) -> Sent:
        """Send several messages (made with `outgoing`) together, as one operation."""
        return self._call(lambda: self._operations.send_many(messages, level=level, gid=gid))

    def fetch(
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
        return self._call(lambda: self._operations.fetch(topic, queue, offset, max=max, wait=wait, broker=broker))

    def receive(
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
        return self._call(
            lambda: self._operations.receive(
                topic,
                group,
                max=max,
                wait=wait,
                invisible=invisible,
                ordered=ordered,
                start=start,
                tags=tags,
                broker=broker,
            )
        )

    def ack(self, group: str, messages: Message | Sequence[Message]) -> None:
        """The messages are done. `StaleLease` if a lease had passed to another consumer; the others count."""
        self._call(lambda: self._operations.ack(group, messages))

    def nack(
        self,
        group: str,
        messages: Message | Sequence[Message],
        *,
        delay: float | None = None,
        dead: bool = False,
        reason: str = "",
    ) -> None:
        """Give messages back: again after `delay` seconds (default: the broker's backoff), or `dead` at once."""
        self._call(lambda: self._operations.nack(group, messages, delay=delay, dead=dead, reason=reason))

    def renew(self, group: str, messages: Message | Sequence[Message], *, invisible: float = 30.0) -> None:
        """Keep messages for `invisible` seconds from now."""
        self._call(lambda: self._operations.renew(group, messages, invisible=invisible))

    def offsets(self, group: str, topic: str, *, broker: str | None = None) -> GroupView:
        """The offsets that a group stored in the broker, with the lag of each queue."""
        return self._call(lambda: self._operations.offsets(group, topic, broker=broker))

    def commit_offsets(
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
        self._call(lambda: self._operations.commit_offsets(group, topic, offsets, expected=expected, broker=broker))

    def reset_group(
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
        return self._call(
            lambda: self._operations.reset_group(group, topic, to=to, offsets=offsets, at=at, broker=broker)
        )

    def topics(self, *, broker: str | None = None) -> list[TopicView]:
        """All topics of a broker; of the preferred one, unless an address is given."""
        return self._call(lambda: self._operations.topics(broker=broker))

    def topic(self, name: str, *, broker: str | None = None) -> TopicView:
        """One topic: its queues, their first and next offsets, its retention."""
        return self._call(lambda: self._operations.topic(name, broker=broker))

    def create_topic(self, name: str, *, queues: int | None = None, retention: float | None = None) -> TopicView:
        """Create a topic, or change it, on every broker of this client; the view of the preferred one. A cluster has it
        as a whole, on all of its stores."""
        return self._call(lambda: self._operations.create_topic(name, queues=queues, retention=retention))

    def info(self, *, broker: str | None = None) -> BrokerInfo:
        """What a broker says of itself."""
        return self._call(lambda: self._operations.info(broker=broker))

    # Calls: messages with a URL, which the broker delivers itself, again and again until they are answered

    def call(
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
        return self._call(
            lambda: self._operations.call(
                url,
                body,
                headers=headers,
                timeout=timeout,
                delay=delay,
                protocol=protocol,
                call_options=call_options,
                gid=gid,
                wait=wait,
            )
        )

    def send_calls(
        self,
        calls: Sequence[OutgoingCall],
        *,
        call_options: CallOptions | None = None,
        gid: str | None = None,
        wait: bool | float = False,
    ) -> Sent:
        """Have the broker make several calls (of `outgoing_call`), in order or concurrently; see `call`."""
        return self._call(lambda: self._operations.send_calls(calls, call_options=call_options, gid=gid, wait=wait))

    def calls(self, gid: str) -> CallsView:
        """What became of the calls of a transaction; `NotFound` if there are none."""
        return self._call(lambda: self._operations.calls(gid))
