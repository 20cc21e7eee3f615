"""What a row of the outbox holds: messages, and the calls that go with them."""

from __future__ import annotations

import time

import msgspec
from msgspec import Struct

from tallystick.core.calls import CallOptions, OutgoingCall
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send


class _WithCalls(Struct, omit_defaults=True):
    """A row with calls. One without is the bare list of its messages, as it was before there were calls."""

    messages: list[OutgoingMessage]
    calls: list[OutgoingCall]
    call_options: CallOptions | None = None
    born_at: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[OutgoingMessage] | _WithCalls).decode


def encode_row(op: Send) -> bytes:
    if not op.calls:
        return _encode(op.messages)
    return _encode(_WithCalls(op.messages, op.calls, op.call_options, time.time_ns() // 1_000_000))


def decode_row(payload: bytes, gid: str) -> tuple[Send, int]:
    """What is to be sent, and when it was written down, in milliseconds since the epoch."""
    row = _decode(payload)
    if isinstance(row, list):
        return Send(row, gid), min(message.born_at for message in row)
    return Send(row.messages, gid, calls=row.calls, call_options=row.call_options), row.born_at
