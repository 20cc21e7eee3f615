"""What is worth a look, and what the report could not see."""

from __future__ import annotations

from typing import NamedTuple

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.words import age_ms

OLD_MS = 300_000  # the begin of a class of ages
FAR_BEHIND = 1_000


class Advice(NamedTuple):
    """`far_behind` are lags by group and topic; `forgets` says that the range began before the broker's memory of
    outcomes does, and `short` names the topics whose messages may be gone."""

    parked: int
    old: int
    oldest_ms: float
    exhausted: int
    letters: int
    far_behind: dict[tuple[str, str], int]
    forgets: bool
    short: list[str]

    @property
    def given(self) -> bool:
        return any(self)


def advice(facts: Facts) -> Advice:
    old = [row for row in facts.figures["pending"] if row["state"] == "prepared" and row["over_ms"] >= OLD_MS]
    length, kept = facts.span.now_ms - facts.span.since_ms, facts.broker.messages_kept_ms
    return Advice(
        parked=facts.total("pending", "transactions", state="parked"),
        old=sum(row["transactions"] for row in old),
        oldest_ms=age_ms(min(row["oldest_at"] for row in old), facts.span.now_ms) if old else 0.0,
        exhausted=facts.total("outcomes", "transactions", by="exhausted"),
        letters=facts.total("dead_letters", "letters"),
        far_behind=_far_behind(facts),
        forgets=length > facts.broker.outcomes_kept_ms,
        short=sorted(name for name, kept_ms in kept.items() if kept_ms and length > kept_ms),
    )


def _far_behind(facts: Facts) -> dict[tuple[str, str], int]:
    lags: dict[tuple[str, str], int] = {}
    for row in facts.figures["lag"]:
        lags[row["group"], row["topic"]] = lags.get((row["group"], row["topic"]), 0) + row["lag"]
    return {place: lag for place, lag in lags.items() if lag > FAR_BEHIND}
