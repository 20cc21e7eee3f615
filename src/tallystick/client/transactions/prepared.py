"""Prepared messages that reach the consumer: how they and their outcomes are marked.

In consumer-dedup mode the broker does nothing special. The message itself is sent before the local commit, marked
`prepare`, and its outcome follows it as a message of its own, in the same queue. Both carry the id under which the
consumer keeps the prepared one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.errors import InvalidRequest
from tallystick.core.message import OutgoingMessage

SIGN = "ts-sign"
ID = "ts-id"

Sign = Literal["prepare", "commit", "rollback"]
SIGNS: tuple[Sign, ...] = ("prepare", "commit", "rollback")

# Room for ":rollback" or the number of a message within the 128 characters of a gid.
LONGEST_GID = 110


def prepared(messages: list[OutgoingMessage], gid: str) -> list[OutgoingMessage]:
    """The messages as they go out before the local commit."""
    if len(gid) > LONGEST_GID:
        raise InvalidRequest(f"gid: at most {LONGEST_GID} characters in consumer-dedup mode", field="gid")
    return [_signed(message, "prepare", gid, index) for index, message in enumerate(messages)]


def outcome(messages: list[OutgoingMessage], gid: str, sign: Sign) -> list[OutgoingMessage]:
    """What follows the prepared messages into their queues."""
    return [
        msgspec.structs.replace(_signed(message, sign, gid, index), value=b"", deliver_at=0)
        for index, message in enumerate(messages)
    ]


def outcome_gid(gid: str, sign: Sign) -> str:
    """The outcome's own gid: the broker drops a repeated outcome, and never takes it for the prepared message."""
    return f"{gid}:{sign}"


def _signed(message: OutgoingMessage, sign: Sign, gid: str, index: int) -> OutgoingMessage:
    if message.deliver_at or message.delay_ms:
        raise InvalidRequest("a delayed message cannot be sent in consumer-dedup mode: it would come after its outcome")
    identity = f"{gid}:{index}"
    headers = {**(message.headers or {}), SIGN: sign, ID: identity}
    # Without a key of its own a message and its outcome could land in different queues, and out of order.
    return msgspec.structs.replace(message, headers=headers, key=message.key or identity)
