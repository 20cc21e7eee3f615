"""The transaction state machine: no I/O, no clock, only rules.

    (nothing) --prepare--> prepared --commit----> committed
                              |  ^ --rollback--> rolled_back
                       limits |  | resume
                              v  |
                            parked --commit / rollback--> (as above)

An outcome is assigned once. What comes after it (a duplicate, a contradiction, a late prepare) changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import astuple, replace

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallSpec, digest_of
from tallystick.core.errors import AlreadyResolved, DifferentContent, OutcomeConflict
from tallystick.core.message import KeptMessage
from tallystick.core.ops import OnExhausted, Outcome, Prepare


class CheckDefaults(Struct, frozen=True):
    """What a broker applies where a transaction does not say."""

    after_ms: int = 10_000
    max_checks: int = 15
    backoff: Backoff = Backoff()
    on_exhausted: OnExhausted = "park"
    # A transaction nobody could even be asked about (a producer group with no live member) is parked at this age.
    max_age_ms: int = 3 * 24 * 3600 * 1000


class Undecided(Struct, array_like=True, tag=1, gc=False):
    """A prepared transaction whose messages are of no interest: they are counted, and not decoded."""

    group: str
    member: str
    channel: int
    via: str
    target: str
    source: str
    first_check_at: int
    max_checks: int
    on_exhausted: str
    created_at: int
    messages: Sequence[Raw]
    pushed: CallSpec | None = None
    check_headers: dict[str, str] | None = None
    check_timeout_ms: int | None = None


class Prepared(Undecided, array_like=True, tag=1, gc=False):
    """A prepared transaction as it is stored: written once, never rewritten by a check."""

    messages: Sequence[KeptMessage]  # type: ignore[assignment]  # the same bytes, understood


class Resolved(Struct, array_like=True, tag=2, gc=False):
    """The tombstone of a transaction, kept for the dedup retention."""

    outcome: Outcome
    group: str
    created_at: int
    resolved_at: int
    by: str
    messages: int
    checks: int
    calls: int = 0


Record = Prepared | Resolved


class CheckState(Struct, array_like=True, gc=False):
    """What checking has come to; exists only once a transaction has been claimed for a check."""

    checks: int
    next_at: int
    last_error: str = ""
    parked: bool = False


def accept_prepare_again(gid: str, existing: Record, request: Prepare) -> None:
    """A repeated prepare is harmless if it says the same; anything else is refused."""
    if isinstance(existing, Resolved):
        raise AlreadyResolved(f"transaction {gid} is {existing.outcome} already; it cannot be prepared again")
    digest = existing.pushed.digest if existing.pushed else b""
    same_calls = digest == digest_of(request.calls, request.call_options)
    if existing.group != request.group or not _same(existing.messages, request.messages) or not same_calls:
        raise DifferentContent(f"gid {gid} is prepared with other content; use a new gid for a new transaction")
    if not _same_barrier(existing.source, request.check.source):
        raise DifferentContent(
            f"gid {gid} is prepared for a transaction in another database, {existing.source}, which knows nothing of "
            "this one; use a new gid for a new transaction"
        )


def _same_barrier(source: str, other: str) -> bool:
    """A source ends with the name of the barrier table itself; what is before the # is how a process reaches it, and
    two of them may do so in different ways."""
    if not source or not other:
        return True  # prepared by hand: it says nothing of a barrier table
    return source.rpartition("#")[2] == other.rpartition("#")[2]


def _same(known: Sequence[KeptMessage], again: Sequence[KeptMessage]) -> bool:
    """Whether messages say the same."""
    return [_said(one) for one in known] == [_said(one) for one in again]


def _said(message: KeptMessage) -> tuple[Any, ...]:
    """When it was written is not what a message says: a retry comes at another time."""
    return astuple(replace(message, born_at=0))


def accept_outcome_again(gid: str, existing: Resolved, outcome: Outcome) -> None:
    """The first durable outcome wins for ever; its repetition is fine, its contradiction is an error."""
    if existing.outcome != outcome:
        raise OutcomeConflict(f"transaction {gid} is {existing.outcome} (by {existing.by}); it cannot become {outcome}")


def after_unanswered(
    state: CheckState, transaction: Undecided, now: int, backoff: Backoff, error: str, permanent: bool
) -> CheckState | OnExhausted:
    """What follows a check that brought no outcome: the next check, or what to do when they are used up."""
    checks = state.checks + 1
    if checks >= transaction.max_checks:
        return "rollback" if transaction.on_exhausted == "rollback" else "park"
    # An error that asking again soon cannot mend (a 404, a refused certificate) waits the longest wait at once.
    wait = backoff.cap_ms if permanent else backoff.wait_ms(checks)
    return CheckState(checks, now + wait, error)
