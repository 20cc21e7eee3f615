"""What is stored of a transaction's calls: what they are, written once, and where they stand."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.calls import CallOutcome, CallSpec


class CallProgress(Struct, array_like=True, gc=False):
    """Where one call stands; `behind`: not in line, because one before it is not done."""

    channel: int
    state: str = "behind"  # behind, waiting, leased, done, parked, stopped
    attempts: int = 0
    failures: int = 0  # the waits grow with these; a service that says `ongoing` has not failed
    next_at: int = 0  # waiting: its place in line; leased: the end of the lease; behind: not before
    last_error: str = ""
    finished_at: int = 0
    last_outcome: CallOutcome | None = None


class CallsState(Struct, array_like=True, gc=False):
    """The state of a transaction's calls; without any, those of one that was rolled back."""

    created_at: int
    concurrent: bool
    retry_ms: int
    max_attempts: int
    calls: list[CallProgress]
    finished_at: int = 0


class CallsRecord(Struct, array_like=True, gc=False):
    spec: CallSpec
    check_target: str


decode_state = msgspec.msgpack.Decoder(CallsState).decode
decode_calls = msgspec.msgpack.Decoder(CallsRecord).decode
