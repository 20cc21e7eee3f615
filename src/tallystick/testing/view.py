"""What a broker has, as a test wants to see it. The coroutines belong on the broker's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct

from tallystick.broker.door import BrokerDoor, Whole
from tallystick.client.base.message import Message, from_chunks
from tallystick.client.consumers.effects import restored
from tallystick.client.consumers.marks import is_signed
from tallystick.client.transactions.prepared import ID, SIGN
from tallystick.core.calls import CallState
from tallystick.core.errors import NotFound
from tallystick.core.limits import MIB
from tallystick.core.message import Chunk
from tallystick.core.wire import TableName, TransactionView

_PAGE = 1_000
_PAGE_BYTES = 16 * MIB
_chunk = msgspec.msgpack.Decoder(Chunk).decode
_NOT_TO_BE_MADE: tuple[CallState, ...] = ("held", "dropped")


class RecordedCall(Struct, frozen=True):
    """A call that a committed transaction has asked for. `state` is `waiting`, or `done` if it was answered."""

    url: str
    body: bytes
    gid: str
    branch: str
    state: CallState

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def json(self) -> Any:
        """The body as what its JSON stands for."""
        return msgspec.json.decode(self.body)


class Half(Struct, frozen=True):
    """A message, or a call, that waits for the outcome of its transaction; or a message that waits for its time."""

    gid: str
    topic: str
    value: bytes = b""
    key: str | None = None


async def messages(door: BrokerDoor, broker: str, topic: str) -> list[Message]:
    """The visible messages of a topic, queue by queue, each queue in order, as consumers are given them: those of the
    mode consumer-dedup appear with their outcome, where it is a commit."""
    stored = _stored(door, broker, topic)
    prepared = {message.header(ID): message for message in stored if message.header(SIGN) == "prepare"}
    found: list[Message] = []
    for message in stored:
        if not is_signed(message):
            found.append(message)
        elif message.header(SIGN) == "commit" and message.header(ID) in prepared:
            found.append(restored(prepared[message.header(ID)], message))
    return found


def _undecided(door: BrokerDoor, broker: str, topic: str) -> list[Message]:
    """Messages of the mode consumer-dedup that have no outcome yet."""
    signed = [message for message in _stored(door, broker, topic) if is_signed(message)]
    decided = {message.header(ID) for message in signed if message.header(SIGN) != "prepare"}
    return [message for message in signed if message.header(SIGN) == "prepare" and message.header(ID) not in decided]


def _stored(door: BrokerDoor, broker: str, topic: str) -> list[Message]:
    try:
        view = door.known_topic(topic)
    except NotFound:
        return []
    found: list[Message] = []
    for queue, (offset, end) in enumerate(zip(view.starts, view.ends, strict=True)):
        while offset < end:
            piece = door.read(topic, queue, offset, _PAGE, _PAGE_BYTES)
            chunks = [_chunk(raw) for raw in piece.chunks]
            some = from_chunks(chunks, topic, queue, offset, _PAGE, door.store_id, broker)
            found += some
            offset = some[-1].offset + 1 if some else piece.next
    return found


async def topics(door: BrokerDoor) -> list[str]:
    views, _ = await door.ends(None, None, 0)
    return [view.name for view in views]


async def transactions(door: BrokerDoor) -> list[TransactionView]:
    """All that have messages or calls, those that have an outcome too."""
    found: list[TransactionView] = []
    after: str | None = None
    while True:
        page = await door.transactions(None, None, after, _PAGE)
        found += page.transactions
        after = page.next
        if after is None:
            return sorted(found, key=lambda view: view.created_at or view.resolved_at)


async def calls(door: BrokerDoor) -> list[RecordedCall]:
    """Those that are to be made, or are done, in the order of their transactions."""
    return [call async for call in _all_calls(door) if call.state not in _NOT_TO_BE_MADE]


async def _all_calls(door: BrokerDoor) -> AsyncIterator[RecordedCall]:
    for view in await transactions(door):
        whole = await door.whole(view.gid, _PAGE_BYTES) if view.calls else None
        if whole is not None and whole.calls is not None:
            for call in _calls_of(whole):
                yield call


def _calls_of(whole: Whole) -> list[RecordedCall]:
    shown = whole.calls.calls if whole.calls is not None else []
    return [
        RecordedCall(call.url, body, call.gid, call.branch, call.state)
        for call, body in zip(shown, whole.bodies, strict=True)
    ]


async def waiting(door: BrokerDoor, broker: str) -> list[Half]:
    """What may still come: half messages, held calls, delayed messages, messages without an outcome."""
    found = [Half(*row) for row in zip(*(await _columns(door, "half", "gid", "topic", "value", "key")), strict=True)]
    found += [Half(*row) for row in zip(*(await _columns(door, "delayed", "gid", "topic")), strict=True)]
    found += [Half(call.gid, call.url, call.body) async for call in _all_calls(door) if call.state == "held"]
    for topic in await topics(door):
        found += [Half(one.gid, topic, one.value, one.key) for one in _undecided(door, broker, topic)]
    return found


async def _columns(door: BrokerDoor, table: TableName, *names: str) -> list[list[Any]]:
    columns: list[list[Any]] = [[] for _ in names]
    after: str | None = None
    while True:
        page = await door.page(table, _PAGE, after)
        for column, name in zip(columns, names, strict=True):
            column += page.columns[name]
        after = page.next
        if after is None:
            return columns
