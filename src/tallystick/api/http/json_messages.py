"""Messages in JSON as people write and read them: a value is text, any JSON, or base64 where it is neither."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tallystick.core.calls import Branch, CallPolicy, OutgoingCall, Protocol, Remark, Url
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import Milliseconds, OutgoingMessage, StoredMessage, Timeout, Timestamp
from tallystick.core.names import Gid, GroupName, HeaderName, HeaderValue, Key, MemberName, Tag, TopicName
from tallystick.core.ops import Check, Digest, Offset, PartIndex, PartRef


class MessageIn(Struct, forbid_unknown_fields=True):
    """`value` is stored as its own text if it is a string, else as JSON; `value_base64` is stored as bytes."""

    topic: TopicName
    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    key: Key | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    tag: Tag | None = None
    deliver_at: Timestamp = 0
    delay_ms: Milliseconds = 0

    def outgoing(self, at: str) -> OutgoingMessage:
        value = _bytes(self.value, self.value_base64, at, "value")
        plain = OutgoingMessage(self.topic, value, self.key, self.headers, self.tag, self.deliver_at)
        plain.delay_ms = self.delay_ms
        return plain


def _bytes(plain: Any, in_base64: str | UnsetType, at: str, name: str) -> bytes:
    """What a field holds that may be given as text, as JSON, or in base64 under another name."""
    if (plain is UNSET) == (in_base64 is UNSET):
        raise InvalidRequest(f"{at}: give either {name} or {name}_base64", field=f"{at}.{name}")
    if not isinstance(in_base64, UnsetType):
        try:
            return base64.b64decode(in_base64, validate=True)
        except binascii.Error as error:
            raise InvalidRequest(f"{at}.{name}_base64: {error}", field=f"{at}.{name}_base64") from error
    return plain.encode() if isinstance(plain, str) else msgspec.json.encode(plain)


def outgoing(messages: list[MessageIn]) -> list[OutgoingMessage]:
    return [message.outgoing(f"messages[{index}]") for index, message in enumerate(messages)]


class CallIn(Struct, forbid_unknown_fields=True):
    """`body` is sent as its own text if it is a string, else as JSON; `body_base64` as bytes; neither: an empty one."""

    url: Url
    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    headers: dict[HeaderName, HeaderValue] | None = None
    protocol: Protocol = "http"
    timeout_ms: Timeout | None = None
    delay_ms: Milliseconds = 0
    branch: Branch = ""

    def outgoing(self, at: str) -> OutgoingCall:
        body = b"" if self.body is self.body_base64 is UNSET else _bytes(self.body, self.body_base64, at, "body")
        return OutgoingCall(self.url, body, self.headers, self.protocol, self.timeout_ms, self.delay_ms, self.branch)


def outgoing_calls(calls: list[CallIn]) -> list[OutgoingCall]:
    return [call.outgoing(f"calls[{index}]") for index, call in enumerate(calls)]


class TransactionIn(Struct, forbid_unknown_fields=True):
    group: GroupName
    messages: list[MessageIn] = []
    gid: Gid | None = None
    check: Check = Check()
    member: MemberName | None = None
    calls: list[CallIn] = []
    call_options: CallPolicy | None = None
    remark: Remark = ""


class MessagesIn(Struct, forbid_unknown_fields=True):
    """Messages, calls or both; calls need a gid."""

    messages: list[MessageIn] = []
    gid: Gid | None = None
    calls: list[CallIn] = []
    call_options: CallPolicy | None = None
    remark: Remark = ""


class PartIn(Struct, forbid_unknown_fields=True):
    messages: list[MessageIn]
    index: PartIndex = 0
    ttl_ms: Milliseconds | None = None


class BatchIn(Struct, forbid_unknown_fields=True):
    """The parts of one batch; the broker draws a gid if there is none. `digest` is kept and shown with the version."""

    parts: list[PartRef] = []
    gid: Gid | None = None
    digest: Digest = ""


class TrimIn(Struct, forbid_unknown_fields=True):
    """By queue, the first offset to keep."""

    offsets: dict[int, Offset]


class OutcomeIn(Struct, forbid_unknown_fields=True):
    """`by`: "operator" for a person's word on a transaction, which must exist then. `delay_ms` holds a commit's calls
    until the transaction is that old."""

    parts: list[PartRef] = []
    delay_ms: Milliseconds = 0
    by: Literal["producer", "operator"] = "producer"


class MessageOut(Struct, kw_only=True, omit_defaults=True):
    """A stored message: `value` is text or JSON, `value_base64` is there in its place where it is neither."""

    topic: str
    queue: int
    offset: int
    key: str | None = None
    value: Any = UNSET
    value_base64: str | UnsetType = UNSET
    headers: dict[str, str] | None = None
    tag: str | None = None
    gid: str | None = None
    sequence: int
    born_at: int
    stored_at: int


def readable(message: StoredMessage) -> MessageOut:
    """A stored message for JSON."""
    return MessageOut(
        topic=message.topic,
        queue=message.queue,
        offset=message.offset,
        key=message.key,
        **_value(message.value),
        headers=message.headers,
        tag=message.tag,
        gid=message.gid or None,
        sequence=message.sequence,
        born_at=message.born_at,
        stored_at=message.stored_at,
    )


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
