"""What stands beside an effect so that it happens once: an inbox row for each message, or the offset of the queue.

A mark is in the transaction before the handler of its message runs, and no mark of a message whose handler has not run:
should a handler commit by itself, what it commits is true. Only where the database can be made to refuse such a commit
are the marks of several messages written at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from tallystick.barrier.operations.inbox import advance_offset, first_time, first_times
from tallystick.client.base.message import Message
from tallystick.client.transactions.prepared import SIGN, SIGNS
from tallystick.client.transactions.script import InDatabase, Script
from tallystick.core.errors import OffsetMoved


class GroupQueue(Struct, frozen=True):
    """A queue as one consumer group reads it. Each store numbers the offsets of its queues for itself."""

    group: str
    store: str
    topic: str
    queue: int


class Marks(Protocol):
    """The marks of the messages of one transaction."""

    def write(self, message: Message) -> Script[bool]:
        """Write one; whether the message has its effect still before it."""

    def write_all(self, messages: Sequence[Message]) -> Script[None]:
        """Write those of all. Only while commits are forbidden."""

    def is_new(self, message: Message) -> bool:
        """After `write_all`, and once for each message: what `write` would have said."""


class InboxRows:
    """A row for each message. That of a prepared message goes by its gid, and is written with its outcome."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._new: set[str] = set()

    def write(self, message: Message) -> Script[bool]:
        if is_signed(message):
            return True
        return (yield InDatabase(first_time(self._group, message.id)))  # type: ignore[no-any-return]

    def write_all(self, messages: Sequence[Message]) -> Script[None]:
        ids = {message.id for message in messages if not is_signed(message)}
        if ids:
            self._new = yield InDatabase(first_times(self._group, ids))

    def is_new(self, message: Message) -> bool:
        if is_signed(message):
            return True
        try:
            self._new.remove(message.id)  # it may be there a second time
        except KeyError:
            return False
        return True


class OffsetRow:
    """The offset of the group. A move locks its row: another consumer of the queue waits, and then finds it moved."""

    def __init__(self, place: GroupQueue, stored: int | None) -> None:
        self._place, self._stored = place, stored

    def write(self, message: Message) -> Script[bool]:
        yield from self.move(message.offset + 1)
        return True

    def write_all(self, messages: Sequence[Message]) -> Script[None]:
        yield from self.move(messages[-1].offset + 1)

    def is_new(self, message: Message) -> bool:
        return True

    def move(self, to: int) -> Script[None]:
        place, stored = self._place, self._stored
        moved = yield InDatabase(advance_offset(*msgspec.structs.astuple(place), expected=stored, new=to))
        if not moved:
            raise OffsetMoved(f"{place.topic}/{place.queue}: another consumer moved the offset from {stored}")
        self._stored = to


def is_signed(message: Message) -> bool:
    """Whether it is a prepared message or its outcome."""
    return message.headers is not None and message.header(SIGN) in SIGNS
