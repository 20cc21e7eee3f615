"""One operation waiting for its answer, and the request that carries many of them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from tallystick.client.base.encoding import encode
from tallystick.client.connection.exchange import never_sent_to
from tallystick.core.backoff import Backoff
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, StorageFailed, StorageFull, TallystickError
from tallystick.core.ops import ClientOp, OpResult
from tallystick.core.wire import BatchResponse

Answered = asyncio.Future[OpResult | None]


class Receiver(Protocol):
    """Who is told an answer: a future of the event loop, or a thread that waits."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def set_result(self, result: OpResult | None, /) -> None: ...
    def set_exception(self, failure: TallystickError, /) -> None: ...


# The msgpack of {"ops": [...]} up to the array's length: a map of one, the key, an array with a 32 bit length.
# Writing it by hand joins operations that were encoded (and so measured) when they were handed in.
_OPEN = b"\x81\xa3ops\xdd"
_GUILTY = re.compile(r"^\W*ops\[(\d+)\]\W*(.*)$", re.DOTALL)

FULL_SECONDS = 1.0
"""How long a full disk is waited for. Room that a compaction took for a moment is back by then; a disk that is really
full stays so, and whoever waits may hold locks in a database meanwhile."""

encode_op: Callable[[ClientOp], bytes] = encode
_decoder = msgspec.msgpack.Decoder(BatchResponse)


UNCONFIRMED = "unconfirmed"
"""The kind of a message of level 0 in `GivenUp`."""
GivenUp = Counter[str]
"""How many operations got no answer before the client was closed, by their kind."""


class WaitingOp:
    """An operation, encoded, with the receiver of its answer.

    `insists`: it is retried until its deadline, slowly also at a broker that answers 401 or 403. `waits`: it is retried
    although the circuit of its broker is open; all that insist are, and other background work.
    """

    __slots__ = ("deadline", "frame", "insists", "last", "receiver", "retry", "tries", "uncertain", "waits")

    def __init__(
        self,
        frame: bytes,
        receiver: Receiver,
        deadline: float,
        retry: bool,
        insists: bool = False,
        waits: bool = False,
    ) -> None:
        self.frame = frame
        self.receiver = receiver
        self.deadline = deadline
        self.retry = retry
        self.insists = insists
        self.waits = waits or insists
        self.tries = 0
        self.last: TallystickError | None = None
        self.uncertain = False

    @property
    def kind(self) -> str:
        """What it asks for: "commit", "send", ..."""
        return _decode_kind(self.frame).op

    def worth_sending(self, now: float) -> bool:
        """Not settled and not late. A caller that left (cancelled) does not unsend what it asked for."""
        return self.deadline > now and (not self.receiver.done() or self.receiver.cancelled())

    def succeed(self, result: OpResult | None) -> None:
        if not self.receiver.done():
            self.receiver.set_result(result)

    def fail(self, error: TallystickError) -> None:
        if not self.receiver.done():
            self.receiver.set_exception(error)

    def note(self, error: TallystickError, now: float) -> None:
        """Remember the failure, and that the broker may have acted: no later refusal makes that certain again."""
        self.tries += 1
        self.last = error
        if isinstance(error, StorageFailed) or (
            isinstance(error, BrokerUnavailable) and not isinstance(error, BrokerUnreachable)
        ):
            self.uncertain = True
        if isinstance(error, StorageFull):
            self.deadline = min(self.deadline, now + FULL_SECONDS)

    def overdue(self, address: str, last: TallystickError | None) -> TallystickError:
        """The error for a caller whose time is up: what the broker said, if it said anything. `last` is what it said
        to others, for an operation that was never sent."""
        last = self.last or last
        if last is not None and self._was_refused(last):
            words = f"{last.detail} (the last of {max(1, self.tries)} answers of {address})"
            return type(last)(words, field=last.field)
        reason = f"; the last failure: {last}" if last is not None else ""
        if self.uncertain:
            return BrokerUnavailable(f"no answer from {address} in time, it may have acted{reason}")
        unsent = BrokerUnreachable(f"{address} did not take the operation in time, it has not acted{reason}")
        return never_sent_to(address, unsent)

    def turned_away(self, error: TallystickError, address: str) -> TallystickError:
        """The error for a caller whom the broker does not let: its own word, unless an answer before it was lost."""
        if not self.uncertain:
            return error
        return BrokerUnavailable(f"no answer from {address} at first, it may have acted; then: {error}")

    def given_up(self) -> TallystickError:
        """The error for the caller of a client that is closed."""
        return BrokerUnavailable(
            f"the client is closed; {'it may have acted on this' if self.uncertain else 'nothing was sent'}"
        )

    def _was_refused(self, last: TallystickError) -> bool:
        """Whether the broker's own word is the whole truth: not if an answer before it was lost, unless that word
        says itself that it may have acted."""
        said = not isinstance(last, BrokerUnavailable)
        return said and (not self.uncertain or isinstance(last, StorageFailed))


class HeldBack:
    """Operations that are sent again after a pause, all of them when it is over for the first."""

    def __init__(self, backoff: Backoff, line_up: Callable[[list[WaitingOp]], None]) -> None:
        self.ops: list[WaitingOp] = []
        self._backoff, self._line_up = backoff, line_up
        self._timer: asyncio.TimerHandle | None = None

    def add(self, op: WaitingOp) -> None:
        self.ops.append(op)
        if self._timer is None:
            wait = self._backoff.wait_ms(op.tries) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait, self._over)

    def _over(self) -> None:
        self._timer = None
        ops, self.ops = self.ops, []
        self._line_up(ops)

    def hurry(self) -> None:
        """The pause is over now."""
        if self._timer is not None:
            self._timer.cancel()
            self._over()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Kind(Struct):
    op: str


_decode_kind = msgspec.msgpack.Decoder(_Kind).decode


def request_body(entries: Sequence[WaitingOp]) -> bytes:
    return b"".join((_OPEN, len(entries).to_bytes(4, "big"), *[entry.frame for entry in entries]))


def results_of(content: bytes, expected: int) -> list[OpResult | None]:
    """The results of a batch; anything but one for each operation is no answer at all."""
    try:
        results = _decoder.decode(content).results
    except msgspec.MsgspecError as failure:
        raise BrokerUnavailable(
            f"it does not answer like a Tallystick broker ({failure}). Check the address."
        ) from failure
    if len(results) != expected:
        raise BrokerUnavailable(f"the broker answered {len(results)} of {expected} operations")
    return results


def separate_guilty(entries: list[WaitingOp], error: TallystickError) -> list[list[WaitingOp]]:
    """Smaller requests for a refused one: the operation that the error names alone, or else two halves."""
    named = _GUILTY.match(error.field or "")
    index = int(named.group(1)) if named else len(entries)
    if index < len(entries):
        return [[entries[index]], entries[:index] + entries[index + 1 :]]
    middle = len(entries) // 2
    return [entries[:middle], entries[middle:]]


def without_position(error: TallystickError) -> TallystickError:
    """The error as its caller sees it: the caller knows of one operation, not of its place in a request."""
    named = _GUILTY.match(error.field or "")
    if named:
        error.field = named.group(2) or None
    return error
