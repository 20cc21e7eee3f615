"""What a reconciliation came to.

Findings are of a few kinds. Each has a finer name (its code), a side on which to look, and a sentence for a human.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Kind = Literal["lost", "duplicated", "ghost", "contradictory", "in_doubt", "late"]
KINDS: tuple[Kind, ...] = ("lost", "duplicated", "ghost", "contradictory", "in_doubt", "late")
DAMAGE: tuple[Kind, ...] = ("lost", "duplicated", "ghost", "contradictory")
Verdict = Literal["clean", "clean so far", "damaged"]


class Meaning(NamedTuple):
    kind: Kind
    side: str
    text: str


CODES: dict[str, Meaning] = {
    # lost
    "unknown_to_broker": Meaning(
        "lost",
        "broker",
        "the producer's database has it as committed; the broker has neither the transaction nor a message of it. "
        "If its gid names the store of another broker, compare with that one as well",
    ),
    "missing_in_log": Meaning(
        "lost",
        "broker",
        "committed, but not all of its messages are in the log. If a queue was archived or trimmed by hand, give the "
        "archive or begin later; a delayed message comes at its time",
    ),
    "not_applied": Meaning(
        "lost", "consumer", "in the log and settled by the group, or past the grace; the group has not applied it"
    ),
    "no_effect": Meaning("lost", "consumer", "the inbox says that it was applied, but its effect is not there"),
    "never_applied": Meaning(
        "lost", "consumer", "the producer's database has it as committed; no consumer has applied a message of it"
    ),
    # duplicated
    "twice_in_log": Meaning("duplicated", "broker", "the same message is in the log more than once"),
    "effect_twice": Meaning("duplicated", "consumer", "its effect is there more than once"),
    # ghost
    "no_barrier_row": Meaning(
        "ghost", "producer", "its messages are visible, but the producer's database knows no such transaction"
    ),
    "visible_undecided": Meaning("ghost", "broker", "its messages are in the log, although it has no outcome yet"),
    "visible_rolled_back": Meaning("ghost", "broker", "its messages are in the log, although it was rolled back"),
    "no_transaction": Meaning(
        "ghost", "broker", "its messages are in the log, but the broker knows no such transaction"
    ),
    "extra_in_log": Meaning("ghost", "broker", "the log has more messages of it than it was committed with"),
    "applied_not_in_log": Meaning("ghost", "consumer", "applied, although no committed message in the log has that id"),
    "applied_without_commit": Meaning(
        "ghost", "consumer", "applied, although the producer's database knows no such committed transaction"
    ),
    # contradictory
    "committed_at_producer": Meaning(
        "contradictory", "broker", "the producer's database has it as committed, the broker as rolled back"
    ),
    "rolled_back_at_producer": Meaning(
        "contradictory",
        "broker",
        "the producer's database has it as rolled back, its messages are visible all the same",
    ),
    "other_value": Meaning(
        "contradictory", "consumer", "applied with another value than the log has: their digests are not the same"
    ),
    # in doubt
    "prepared": Meaning("in_doubt", "broker", "prepared, and no outcome yet; the check-back will find it"),
    "parked": Meaning("in_doubt", "broker", "parked: nobody could tell its outcome; decide it, or resume its checks"),
    "outbox": Meaning("in_doubt", "producer", "committed in the producer's database and waiting in its outbox"),
    "unconfirmed": Meaning("in_doubt", "broker", "a prepared message whose outcome has not been sent to the consumers"),
    "dead_letter": Meaning("in_doubt", "consumer", "not applied: it waits in the group's dead-letter topic"),
    # late
    "waiting": Meaning("late", "consumer", "not applied yet: the group has not come that far"),
    "visible_late": Meaning("late", "broker", "became visible later than the limit"),
    "applied_late": Meaning("late", "consumer", "applied later than the limit"),
}

# Not damage, but the comparison is not over for them. What was late and has come by now is over.
OPEN: tuple[str, ...] = ("prepared", "parked", "outbox", "unconfirmed", "dead_letter", "waiting")


class Example(Struct, frozen=True, kw_only=True):
    """One finding, as the output has it."""

    kind: str
    code: str
    side: str
    gid: str
    message_id: str | None
    group: str | None
    topic: str | None
    queue: int | None
    offset: int | None
    messages: int | None
    at_ms: int | None
    age_ms: int | None
    explanation: str


class Reach(Struct, frozen=True, kw_only=True):
    """From when on a side can be compared (None: from its beginning), and why not from earlier on."""

    side: str
    since_ms: int | None
    why: str


class ReconcileSummary(Struct, frozen=True, kw_only=True):
    """`found` counts findings by kind, `codes` by their finer name; `counts` says how much was compared."""

    found: dict[str, int]
    codes: dict[str, int]
    counts: dict[str, int]
    reach: tuple[Reach, ...]
    since_ms: int | None
    until_ms: int
    examples: tuple[Example, ...]
    notes: tuple[str, ...]
    output: str
    seconds: float

    @property
    def damage(self) -> int:
        return sum(self.found.get(kind, 0) for kind in DAMAGE)

    @property
    def unfinished(self) -> int:
        """What is not damage and not yet settled either: FastMiniMQ's messages without a confirmation."""
        return sum(self.codes.get(code, 0) for code in OPEN)

    @property
    def verdict(self) -> Verdict:
        """FastMiniMQ's two cases: with nothing open both sides must be equal as sets, and they are ("clean"); with
        something open, all that is settled agrees ("clean so far")."""
        if self.damage:
            return "damaged"
        return "clean so far" if self.unfinished else "clean"
