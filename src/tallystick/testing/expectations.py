"""What a test expects of messages and calls, and what it is told when that is not so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from tallystick.client.base.message import Message, encode_value
from tallystick.core.wire import TransactionView
from tallystick.testing.view import Half, RecordedCall

_SHOWN = 20
_SHOWN_CHARACTERS = 200


class _Anything:
    def __repr__(self) -> str:
        return "anything"


ANYTHING: Any = _Anything()
"""The default of everything that a test may leave open; None is a value of its own: no key, no tag."""


class Expected(Struct, frozen=True):
    """A message that should be there."""

    topic: str
    value: Any = ANYTHING
    key: Any = ANYTHING
    headers: Mapping[str, str] | None = None
    tag: Any = ANYTHING

    def matches(self, message: Message) -> bool:
        return (
            _same(message.value, self.value)
            and self.key in (ANYTHING, message.key)
            and self.tag in (ANYTHING, message.tag)
            and all(message.header(name, "\0") == value for name, value in (self.headers or {}).items())
        )

    def __str__(self) -> str:
        asked = {"value": self.value, "key": self.key, "tag": self.tag, "headers": self.headers or ANYTHING}
        said = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not ANYTHING)
        return f"a message on {self.topic!r}" + (f" with {said}" if said else "")


def calls_to(calls: Iterable[RecordedCall], url: str, body: Any) -> list[RecordedCall]:
    return [call for call in calls if call.url == url and _same(call.body, body)]


def _same(content: bytes, expected: Any) -> bool:
    """Bytes and text as they are; anything else as JSON, so that neither the order of names nor what compares itself
    (unittest.mock.ANY) matters."""
    if expected is ANYTHING:
        return True
    if isinstance(expected, bytes | bytearray | memoryview | str):
        return content == encode_value(expected)
    try:
        found = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return False
    return bool(found == expected) or content == _encoded(expected)


def _encoded(value: Any) -> bytes | None:
    """What the client would have sent for it: a dataclass, a date or a tuple is not what its JSON is read as."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None


class Situation(Struct, frozen=True):
    """All that a broker has at the moment an expectation is not met."""

    messages: list[Message]
    calls: list[RecordedCall]
    waiting: list[Half]
    transactions: list[TransactionView]

    def __str__(self) -> str:
        parts = [
            _listed("sent", self.messages, _message),
            _listed("calls to be made", self.calls, lambda call: f"{call.url} {_content(call.body)} ({call.state})"),
            _listed("waiting for their outcome or their time", self.waiting, _half),
            _listed("transactions", self.transactions, transaction),
        ]
        return "\n".join(part for part in parts if part)


def transaction(view: TransactionView) -> str:
    what = f"{view.gid}: {view.state}"
    if view.state in ("committed", "rolled_back"):
        return f"{what} by {view.resolved_by or 'the client'}{_checks(view)}"
    why = f", the last check-back: {view.last_error}" if view.last_error else ""
    return f"{what}, nobody has told its outcome (group {view.group!r}){_checks(view)}{why}"


def _checks(view: TransactionView) -> str:
    return f", {view.checks} check-backs" if view.checks else ""


def _message(message: Message) -> str:
    extra = "".join(
        f", {name}={value!r}"
        for name, value in (("key", message.key), ("tag", message.tag), ("headers", message.headers))
        if value
    )
    return f"{message.topic!r}: {_content(message.value)}{extra} (gid {message.gid or 'none'})"


def _half(half: Half) -> str:
    key = f", key={half.key!r}" if half.key else ""
    return f"{half.topic!r}: {_content(half.value)}{key} (gid {half.gid or 'none'})"


def _content(content: bytes) -> str:
    shown = content.decode("utf-8", "backslashreplace")
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}... ({len(content)} bytes)"


def _listed(title: str, things: list[Any], show: Callable[[Any], str]) -> str:
    if not things:
        return f"{title}: nothing" if title == "sent" else ""
    lines = [f"  {show(thing)}" for thing in things[:_SHOWN]]
    more = [f"  and {len(things) - _SHOWN} more"] if len(things) > _SHOWN else []
    return "\n".join([f"{title}:", *lines, *more])
