"""What happens to messages: their effects, and what makes each effect happen once.

Everything between the begin and the commit is one local transaction in the consumer's own database, of one message or
of several. A crash anywhere leaves either all of it or nothing, and the messages come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import TransactionLost
from tallystick.barrier.operations.inbox import allow_commit, first_time, forbid_commit, keep_digest, read_offset
from tallystick.barrier.operations.prepared import prepared_drop, prepared_put, prepared_take
from tallystick.client.base.message import Message
from tallystick.client.consumers.marks import GroupQueue, Marks, OffsetRow, is_signed
from tallystick.client.consumers.subscription import Poisonous, Subscription
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.modes import new_block
from tallystick.client.transactions.prepared import ID, SIGN
from tallystick.client.transactions.producer import Producer
from tallystick.client.transactions.script import InDatabase, Local, Script, UserCode
from tallystick.client.transactions.transaction import TransactionBase
from tallystick.core.errors import InvalidRequest, OutcomeUnknown, TallystickError

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Desk(NamedTuple):
    """A handler's connection, as it sees it and as we do."""

    connection: Any
    adapter: Adapter


Call = Callable[[Message], Any]
"""The handler, with all but the message filled in."""


class Handling(Enum):
    HANDLED = "handled"
    DUPLICATE = "duplicate"
    NOTED = "noted"  # a prepared message or its withdrawal: kept or dropped, no effect yet


class NotPreparedYet(TallystickError):
    """The outcome came before the message that it is about; it has to wait."""

    code = "not_prepared_yet"


class HandlerAborted(TallystickError):
    """The handler raised something that would end a program (SystemExit, a cancellation); it counts as a failure."""

    code = "handler_aborted"


class OneByOne(TallystickError):
    """These messages are not handled in one transaction; nothing has begun."""

    code = "one_by_one"


class ConnectionLost(TallystickError):
    """The consumer's database connection is not usable any more."""

    code = "connection_lost"


def handle_plainly(subscription: Subscription, messages: Sequence[Message]) -> Script[list[Handling]]:
    """Without a database of the consumer's: the effect may happen again if the acknowledgement is lost."""
    (message,) = messages  # nothing is gained by a batch
    if is_signed(message):
        raise InvalidRequest(
            f"message {message.id} waits for its outcome, which only a subscription with exactly_once= can follow"
        )
    subscription.read(message)
    yield UserCode(lambda: subscription.handler(message), on_loop=subscription.asynchronous)
    return [Handling.HANDLED]


def handle_once(
    subscription: Subscription, messages: Sequence[Message], desk: Desk, producer: Producer, marks: Marks
) -> Script[list[Handling]]:
    """One local transaction: the marks, the effects, and what the handler sends."""
    if len(messages) > 1 and not together(subscription, desk.adapter):
        raise OneByOne
    poison = _read_all(subscription, messages)
    if poison is not None and len(messages) > 1:
        raise poison  # before anything has begun; they are handled one by one then

    def body(call: Call) -> Script[list[Handling]]:
        # One message has nothing to gain by it.
        ahead = len(messages) > 1 and (yield InDatabase(forbid_commit()))
        if ahead:
            yield from marks.write_all(messages)
        verdicts: list[Handling] = []
        for message in messages:
            if verdicts:
                yield from _go_on(desk, verdicts[-1], ahead)
            if not (marks.is_new(message) if ahead else (yield from marks.write(message))):
                verdicts.append(Handling.DUPLICATE)
            elif is_signed(message):
                verdicts.append((yield from _signed_effect(subscription, message, call)))
            elif poison is not None:
                raise poison
            else:
                yield from _effect(subscription, message, call)
                verdicts.append(Handling.HANDLED)
        if ahead:
            yield InDatabase(allow_commit())
        return verdicts

    return _with_handler(subscription, desk, producer, body)


def together(subscription: Subscription, adapter: Adapter) -> bool:
    """Whether several messages may have one transaction. What handlers send goes out at its end: if one of them commits
    by itself before that, the messages of those before it would be lost, while their effects and marks are there. So
    handlers that send are batched only where a commit can be forbidden."""
    return not subscription.sends or adapter.dialect.forbid_commit() is not None


def _read_all(subscription: Subscription, messages: Sequence[Message]) -> Poisonous | None:
    """Decode the values, before there is a transaction; what is wrong with one of them.

    A message by itself is not refused before its mark says that it is new: one that has its effect is no dead letter,
    even if the type has changed since.
    """
    for message in messages:
        if not is_signed(message):
            try:
                subscription.read(message)
            except Poisonous as failure:
                return failure
    return None


def move_offset(desk: Desk, place: GroupQueue, stored: int | None, to: int) -> Script[None]:
    """One local transaction: the group's offset moves, nothing else happens."""
    return _in_transaction(LocalTransaction(desk.adapter), lambda: OffsetRow(place, stored).move(to))


def stored_offset(desk: Desk, place: GroupQueue) -> Script[int | None]:
    """Where the group goes on reading; None before its first message."""

    def body() -> Script[int | None]:
        return (yield InDatabase(read_offset(*msgspec.structs.astuple(place))))  # type: ignore[no-any-return]

    return _in_transaction(LocalTransaction(desk.adapter), body)


def begin_at_ends(desk: Desk, place: GroupQueue, ends: Sequence[int]) -> Script[int | None]:
    """One local transaction: a group without a place in the topic gets one at the end of every queue, written down so
    that a restart does not skip ahead. None if it has places in others only: this queue was added since, and belongs to
    the group as a whole."""

    def body() -> Script[int | None]:
        queues = [msgspec.structs.replace(place, queue=queue) for queue in range(len(ends))]
        for one in (place, *queues):  # its own first: the reader of another queue may just have begun for all
            stored = yield InDatabase(read_offset(*msgspec.structs.astuple(one)))
            if stored is not None:
                return stored if one == place else None
        for one, end in zip(queues, ends, strict=True):
            yield from OffsetRow(one, None).move(end)
        return ends[place.queue]

    return _in_transaction(LocalTransaction(desk.adapter), body)


def _go_on(desk: Desk, last: Handling, ahead: bool) -> Script[None]:
    """To the next message of a batch, if the transaction is open still."""
    # After a duplicate there is nothing to ask: no handler can have ended it. (And without a row of ours PyMySQL does
    # not know yet that one is open.)
    if last is not Handling.DUPLICATE and not desk.adapter.in_transaction:
        raise TransactionLost("a handler has ended the transaction of its batch", rolled_back=False)
    # In autocommit mode PyMySQL and SQLAlchemy may not know that it is gone; each effect would be committed by itself.
    # Then this begins another one, which the end finds out. (psycopg itself always knows.)
    if not (ahead and desk.adapter.raw_at_once):
        yield Local.BEGIN


def _with_handler(
    subscription: Subscription, desk: Desk, producer: Producer, body: Callable[[Call], Script[T]]
) -> Script[T]:
    """A handler of (message, conn, tx) runs in a block of its own, so what it sends is committed with the rest."""
    handler, connection = subscription.handler, desk.connection
    if subscription.sends:
        block = new_block(subscription.mode, producer.connection.settings, lambda: producer, desk.adapter)
        tx = TransactionBase(block)
        return _in_transaction(block, lambda: body(lambda message: handler(message, connection, tx)))
    local = LocalTransaction(desk.adapter)
    if subscription.with_connection:
        return _in_transaction(local, lambda: body(lambda message: handler(message, connection)))
    return _in_transaction(local, lambda: body(handler))


def _in_transaction(local: LocalTransaction | Block, body: Callable[[], Script[T]]) -> Script[T]:
    try:
        yield from local.begin()
    except Exception as failure:
        raise ConnectionLost(f"no transaction can begin: {failure}") from failure
    try:
        value = yield from body()
        yield from local.end()
    except OutcomeUnknown as unknown:
        raise ConnectionLost(str(unknown)) from unknown
    except BaseException as failure:
        try:
            yield from local.leave(failure)
        except Exception as broken:
            raise ConnectionLost(f"{failure}; and no rollback: {broken}") from failure
        raise
    return value


def _signed_effect(subscription: Subscription, message: Message, call: Call) -> Script[Handling]:
    """A prepared message is kept, the last one counting; its outcome uses it up, once."""
    group, sign, identity = subscription.group, message.header(SIGN), message.header(ID)
    if sign == "prepare":
        yield InDatabase(prepared_put(group, identity, _encode(message)))
        return Handling.NOTED
    # The inbox row outlives the prepared one: a prepared message that comes late (again) has no second effect.
    if not (yield InDatabase(first_time(group, identity))):
        return Handling.DUPLICATE
    if sign == "rollback":
        yield InDatabase(prepared_drop(group, identity))
        return Handling.NOTED
    payload = yield InDatabase(prepared_take(group, identity))
    if payload is None and subscription.by == "offset":
        # In order: what is not here by now never comes. The group began to read behind it.
        log.warning("message %s was committed, but sent before this group began to read", identity)
        return Handling.NOTED
    if payload is None:
        raise NotPreparedYet(f"the outcome of {identity} is here, the message itself is not")
    whole = restored(_decode(payload), message)
    subscription.read(whole)  # here and not before: its value was in the database
    yield from _effect(subscription, whole, call, identity)
    return Handling.HANDLED


def _effect(subscription: Subscription, message: Message, call: Call, identity: str | None = None) -> Script[None]:
    # What the handler is given is kept before it runs, so that it cannot have changed it.
    if subscription.digest:
        yield InDatabase(keep_digest(subscription.group, identity or message.id, message.value))
    yield UserCode(lambda: call(message))


def restored(prepared: Message, outcome: Message) -> Message:
    """The message as its sender wrote it, delivered by its outcome."""
    headers = {name: value for name, value in (prepared.headers or {}).items() if name not in (SIGN, ID)}
    key = None if prepared.key == outcome.header(ID) else prepared.key
    return msgspec.structs.replace(
        prepared, headers=headers or None, key=key, attempt=outcome.attempt, receipt=outcome.receipt
    )
