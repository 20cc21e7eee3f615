"""Messages in JSON as people write and read them: a value is text, any JSON, or base64 where it is neither."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tallystick.core.errors import InvalidRequest
from tallystick.core.message import OutgoingMessage, StoredMessage, Timestamp
from tallystick.core.names import Gid, GroupName, HeaderName, HeaderValue, Key, MemberName, Tag, TopicName
from tallystick.core.ops import Check, Milliseconds, Offset, PartIndex, PartRef


class MessageIn(Struct, forbid_unknown_fields=True):
    """`value` is stored as its own text if it is a string, else as JSON; `value_base64` is stored as bytes."""

    topic: TopicName
    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    key: Key | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    tag: Tag | None = None
    deliver_at: Timestamp = 0

    def outgoing(self, at: str) -> OutgoingMessage:
        return OutgoingMessage(self.topic, self._bytes(at), self.key, self.headers, self.tag, self.deliver_at)

    def _bytes(self, at: str) -> bytes:
        if (self.value is UNSET) == (self.value_base64 is UNSET):
            raise InvalidRequest(f"{at}: give either value or value_base64", field=f"{at}.value")
        if not isinstance(self.value_base64, UnsetType):
            try:
                return base64.b64decode(self.value_base64, validate=True)
            except binascii.Error as error:
                raise InvalidRequest(f"{at}.value_base64: {error}", field=f"{at}.value_base64") from error
        return self.value.encode() if isinstance(self.value, str) else msgspec.json.encode(self.value)


def outgoing(messages: list[MessageIn]) -> list[OutgoingMessage]:
    return [message.outgoing(f"messages[{index}]") for index, message in enumerate(messages)]


class TransactionIn(Struct, forbid_unknown_fields=True):
    group: GroupName
    messages: list[MessageIn]
    gid: Gid | None = None
    check: Check = Check()
    member: MemberName | None = None


class MessagesIn(Struct, forbid_unknown_fields=True):
    messages: list[MessageIn]
    gid: Gid | None = None


class PartIn(Struct, forbid_unknown_fields=True):
    messages: list[MessageIn]
    index: PartIndex = 0
    ttl_ms: Milliseconds | None = None


class BatchIn(Struct, forbid_unknown_fields=True):
    """The parts of one batch; the broker draws a gid if there is none."""

    parts: list[PartRef] = []
    gid: Gid | None = None


class TrimIn(Struct, forbid_unknown_fields=True):
    """By queue, the first offset to keep."""

    offsets: dict[int, Offset]


class OutcomeIn(Struct, forbid_unknown_fields=True):
    """`by`: "operator" for a person's word on a transaction, which must exist then."""

    parts: list[PartRef] = []
    by: Literal["producer", "operator"] = "producer"


def readable(message: StoredMessage) -> dict[str, Any]:
    """A stored message for JSON."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "key": message.key,
        **_value(message.value),
        "headers": message.headers,
        "tag": message.tag,
        "gid": message.gid or None,
        "sequence": message.sequence,
        "born_at": message.born_at,
        "stored_at": message.stored_at,
    }
    return {name: value for name, value in shown.items() if value is not None}


def _value(value: bytes) -> dict[str, Any]:
    if value[:1] in (b"{", b"["):
        try:
            return {"value": msgspec.json.decode(value)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # it only looked like JSON: shown as text below
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
