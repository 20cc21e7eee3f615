"""Messages as users hand them in and get them out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import msgspec
from msgspec import UNSET, Struct

from tallystick.client.base.times import milliseconds
from tallystick.client.base.values import UndecodableValue, decoder_of, encode_value, name_of
from tallystick.core.durations import DAY_MS
from tallystick.core.errors import InvalidRequest
from tallystick.core.headers import check_count
from tallystick.core.message import MAX_DELAY_DAYS, Chunk, OutgoingMessage, StoredMessage
from tallystick.core.names import LONGEST_HEADER_NAME, LONGEST_HEADER_VALUE, LONGEST_KEY, LONGEST_TAG, check_name
from tallystick.core.wire import Delivery

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", covariant=True, default=Any)  # so that a plain `Message` is one, too
    D = TypeVar("D")
else:
    from typing import TypeVar

    T, D = TypeVar("T", covariant=True), TypeVar("D")

checked_topic = lru_cache(maxsize=4096)(lambda topic: check_name(topic, "topic"))
"""Topic names repeat in every call; each is looked at once."""


class Message(Struct, Generic[T], gc=False):
    """A message that was fetched or received.

    `id` names it wherever it is delivered again. `attempt` counts deliveries to the group, from 1; `receipt` is
    what `ack` and `nack` need (both are empty for a fetched message). A handler that was subscribed with `type=Order`
    gets a `Message[Order]`, whose `data` is an `Order`.
    """

    topic: str
    queue: int
    offset: int
    value: bytes
    key: str | None
    headers: dict[str, str] | None
    tag: str | None
    gid: str
    sequence: int
    born_at: int
    stored_at: int
    store: str
    broker: str
    group: str = ""
    receipt: str = ""
    attempt: int = 0
    lease_until: int = 0
    _data: Any = UNSET

    @property
    def id(self) -> str:
        if self.gid:
            return f"{self.gid}/{self.sequence}"
        return f"{self.store}/{self.topic}/{self.queue}/{self.offset}"

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode("utf-8")

    def json(self) -> Any:
        """The value as what its JSON stands for."""
        return msgspec.json.decode(self.value)

    @property
    def data(self) -> T:
        """The value as the type that the handler was subscribed with, `subscribe(..., type=Order)`."""
        if self._data is UNSET:
            raise InvalidRequest(
                "data: this message was delivered without a type; subscribe with type=Order, or call decode(Order)",
                field="data",
            )
        return cast(T, self._data)

    @overload
    def decode(self, type: type[D]) -> D: ...
    @overload
    def decode(self, type: Any) -> Any: ...
    def decode(self, type: Any) -> Any:
        """The value as a type: `bytes` as they are, `str` from UTF-8, anything else from JSON.

        Types are those of msgspec (Structs, dataclasses, TypedDicts, attrs classes, `list[Order]`) and models of
        pydantic. `UndecodableValue` if the value is not of that type; it says where.
        """
        try:
            return decoder_of(type)(self.value)
        except ValueError as failure:
            what = f"message {self.id} of {self.topic} is not {name_of(type)}"
            raise UndecodableValue(f"{what}: {failure}") from failure

    def header(self, name: str, default: str = "") -> str:
        """The value of a header, or `default` if the message has none of that name."""
        return self.headers.get(name, default) if self.headers else default


def outgoing(
    topic: str,
    value: Any,
    *,
    key: str | None = None,
    headers: dict[str, str] | None = None,
    tag: str | None = None,
    delay: float | None = None,
    deliver_at: float | None = None,
) -> OutgoingMessage:
    """A message to send. `delay` is seconds from when the broker has it, by the broker's clock, `deliver_at` seconds
    since the epoch; at most one of them.

    Names, times and headers are checked here; sizes where the broker's own limits are known.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        named = checked_topic(topic)
    except TypeError:  # it cannot be looked up: a list, say
        named = check_name(topic, "topic")
    message = OutgoingMessage(
        named,
        encode_value(value),
        key,
        headers,
        tag,
        0 if deliver_at is None else milliseconds(deliver_at, "deliver_at"),
        now_ms,
        0 if delay is None else milliseconds(delay, "delay"),
    )
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("give delay or deliver_at, not both", field="deliver_at")
    if message.delay_ms > MAX_DELAY_DAYS * DAY_MS:
        raise InvalidRequest(f"delay: at most {MAX_DELAY_DAYS} days; give deliver_at", field="delay")
    if key is not None:
        _check_text(key, "key", LONGEST_KEY)
    if tag is not None:
        _check_text(tag, "tag", LONGEST_TAG)
    if headers is not None:
        check_header_texts(headers)
        check_count(headers, "headers")
    return message


def _check_text(text: str, field: str, most: int) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}: {type(text).__name__} is not text; use str({field})", field=field)
    if len(text) > most:
        raise InvalidRequest(f"{field}: {len(text)} characters, the limit is {most}", field=field)


def check_header_texts(headers: object) -> None:
    if not isinstance(headers, dict):
        kind = type(headers).__name__
        raise InvalidRequest(
            f"headers: a dict is needed (got {kind}). Give headers={{'name': 'value'}}.", field="headers"
        )
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidRequest(f"headers: {name!r} and its value must be text", field="headers")
        if not 1 <= len(name) <= LONGEST_HEADER_NAME or len(value) > LONGEST_HEADER_VALUE:
            raise InvalidRequest(
                f"headers: {name[:40]!r}: a name has 1 to {LONGEST_HEADER_NAME} characters and a value at most "
                f"{LONGEST_HEADER_VALUE}",
                field="headers",
            )


def from_delivery(delivery: Delivery, group: str, store: str, broker: str) -> Message:
    message = _from_stored(delivery.message, store, broker)
    message.group = group
    message.receipt = delivery.receipt
    message.attempt = delivery.attempt
    message.lease_until = delivery.lease_until
    return message


def _from_stored(stored: StoredMessage, store: str, broker: str) -> Message:
    return Message(
        stored.topic,
        stored.queue,
        stored.offset,
        stored.value,
        stored.key,
        stored.headers,
        stored.tag,
        stored.gid,
        stored.sequence,
        stored.born_at,
        stored.stored_at,
        store,
        broker,
    )


def from_chunks(
    chunks: Iterable[Chunk], topic: str, queue: int, start: int, most: int, store: str, broker: str
) -> list[Message]:
    """The messages of chunks from offset `start` on, at most `most`, without a step through stored messages."""
    found: list[Message] = []
    for chunk in chunks:
        first = max(0, start - chunk.base)
        found += [
            Message(
                topic,
                queue,
                chunk.base + index,
                chunk.values[index],
                chunk.keys[index],
                chunk.headers[index],
                chunk.tags[index],
                chunk.gids[index],
                chunk.sequences[index],
                chunk.born_at[index],
                chunk.stored_at,
                store,
                broker,
            )
            for index in range(first, min(len(chunk.values), first + most - len(found)))
        ]
    return found
