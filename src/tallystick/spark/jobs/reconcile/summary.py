"""What a reconciliation came to."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from tallystick.spark.jobs.reconcile.kinds import DAMAGE, OPEN

Verdict = Literal["clean", "clean so far", "damaged"]


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
