"""What happens to one message: its effect, and what makes the effect happen once.

Everything between the begin and the commit is one local transaction in the consumer's own database. A crash anywhere
leaves either all of it or nothing, and the message comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from tallystick.barrier.operations.inbox import advance_offset, first_time, keep_digest, read_offset
from tallystick.barrier.operations.prepared import prepared_drop, prepared_put, prepared_take
from tallystick.client.message import Message
from tallystick.client.script import InDatabase, Local, Script, UserCode
from tallystick.client.signs import ID, SIGN, SIGNS
from tallystick.client.subscription import Subscription
from tallystick.core.errors import InvalidRequest, OffsetMoved, TallystickError

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Place(Struct, frozen=True):
    """A queue as one consumer group reads it. Each store numbers the offsets of its queues for itself."""

    group: str
    store: str
    topic: str
    queue: int


class Verdict(Enum):
    HANDLED = "handled"
    DUPLICATE = "duplicate"
    NOTED = "noted"  # a prepared message or its withdrawal: kept or dropped, no effect yet


class NotPreparedYet(TallystickError):
    """The outcome came before the message that it is about; it has to wait."""

    code = "not_prepared_yet"


class ConnectionLost(TallystickError):
    """The consumer's database connection is not usable any more."""

    code = "connection_lost"


def handle_plainly(subscription: Subscription, message: Message) -> Script[Verdict]:
    """Without a database of the consumer's: the effect may happen again if the acknowledgement is lost."""
    if message.header(SIGN) in SIGNS:
        raise InvalidRequest(
            f"message {message.id} waits for its outcome, which only a subscription with exactly_once= can follow"
        )
    yield UserCode(lambda: subscription.handler(message))
    return Verdict.HANDLED


def handle_by_inbox(subscription: Subscription, message: Message, connection: Any) -> Script[Verdict]:
    """One local transaction: the inbox row and the effect."""

    def body() -> Script[Verdict]:
        if message.header(SIGN) in SIGNS:
            return (yield from _signed_effect(subscription, message, connection))
        if not (yield InDatabase(first_time(subscription.group, message.id))):
            return Verdict.DUPLICATE
        yield from _digest(subscription, message.id, message)
        yield UserCode(lambda: _call(subscription, message, connection))
        return Verdict.HANDLED

    return _in_transaction(body)


def handle_by_offset(
    subscription: Subscription, message: Message, connection: Any, place: Place, stored: int | None
) -> Script[Verdict]:
    """One local transaction: the group's offset moves past the message, and the effect."""

    def body() -> Script[Verdict]:
        # First, because it locks the row: another consumer of this queue waits here and then finds it moved.
        yield from _move(place, stored, message.offset + 1)
        if message.header(SIGN) in SIGNS:
            return (yield from _signed_effect(subscription, message, connection))
        yield from _digest(subscription, message.id, message)
        yield UserCode(lambda: _call(subscription, message, connection))
        return Verdict.HANDLED

    return _in_transaction(body)


def move_offset(place: Place, stored: int | None, to: int) -> Script[None]:
    """One local transaction: the group's offset moves, nothing else happens."""
    return _in_transaction(lambda: _move(place, stored, to))


def stored_offset(place: Place) -> Script[int | None]:
    """Where the group goes on reading; None before its first message."""

    def body() -> Script[int | None]:
        return (yield InDatabase(read_offset(*msgspec.structs.astuple(place))))  # type: ignore[no-any-return]

    return _in_transaction(body)


def _move(place: Place, stored: int | None, to: int) -> Script[None]:
    moved = yield InDatabase(advance_offset(*msgspec.structs.astuple(place), expected=stored, new=to))
    if not moved:
        raise OffsetMoved(f"{place.topic}/{place.queue}: another consumer moved the offset from {stored}")


def _in_transaction(body: Callable[[], Script[T]]) -> Script[T]:
    try:
        yield Local.BEGIN
    except Exception as failure:
        raise ConnectionLost(f"no transaction can begin: {failure}") from failure
    try:
        value = yield from body()
        yield Local.COMMIT
    except BaseException as failure:
        try:
            yield Local.ROLLBACK
        except Exception as broken:
            raise ConnectionLost(f"{failure}; and no rollback: {broken}") from failure
        raise
    return value


def _signed_effect(subscription: Subscription, message: Message, connection: Any) -> Script[Verdict]:
    """A prepared message is kept, the last one counting; its outcome uses it up, once."""
    group, sign, identity = subscription.group, message.header(SIGN), message.header(ID)
    if sign == "prepare":
        yield InDatabase(prepared_put(group, identity, _encode(message)))
        return Verdict.NOTED
    # The inbox row outlives the prepared one: a prepared message that comes late (again) has no second effect.
    if not (yield InDatabase(first_time(group, identity))):
        return Verdict.DUPLICATE
    if sign == "rollback":
        yield InDatabase(prepared_drop(group, identity))
        return Verdict.NOTED
    payload = yield InDatabase(prepared_take(group, identity))
    if payload is None and subscription.by == "offset":
        # In order: what is not here by now never comes. The group began to read behind it.
        log.warning("message %s was committed, but sent before this group began to read", identity)
        return Verdict.NOTED
    if payload is None:
        raise NotPreparedYet(f"the outcome of {identity} is here, the message itself is not")
    prepared = _restored(_decode(payload), message)
    yield from _digest(subscription, identity, prepared)
    yield UserCode(lambda: _call(subscription, prepared, connection))
    return Verdict.HANDLED


def _digest(subscription: Subscription, identity: str, message: Message) -> Script[None]:
    """Keep what the handler is given, if that was asked for: before it runs, so that it cannot have changed it."""
    if subscription.digest:
        yield InDatabase(keep_digest(subscription.group, identity, message.value))


def _restored(prepared: Message, outcome: Message) -> Message:
    """The message as its sender wrote it, delivered by its outcome."""
    headers = {name: value for name, value in (prepared.headers or {}).items() if name not in (SIGN, ID)}
    key = None if prepared.key == outcome.header(ID) else prepared.key
    return msgspec.structs.replace(
        prepared, headers=headers or None, key=key, attempt=outcome.attempt, receipt=outcome.receipt
    )


def _call(subscription: Subscription, message: Message, connection: Any) -> Any:
    if subscription.with_connection:
        return subscription.handler(message, connection)
    return subscription.handler(message)
