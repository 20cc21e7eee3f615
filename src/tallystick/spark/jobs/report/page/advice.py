"""What is worth a look, and what the report could not see."""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.markup import Markup, join, tag
from tallystick.spark.jobs.report.page.waiting import age_ms
from tallystick.spark.jobs.report.page.words import count, many, took

OLD_MS = 300_000  # the begin of a class of ages
FAR_BEHIND = 1_000


def advice(facts: Facts) -> Markup | None:
    found = [*_to_do(facts), *_not_seen(facts)]
    if not found:
        return None
    return tag("div", tag("h2", "Worth a look"), tag("ul", *[tag("li", one) for one in found]), class_="look")


def _to_do(facts: Facts) -> Iterator[Markup]:
    if parked := facts.total("pending", "transactions", state="parked"):
        are, their = ("is", "its") if parked == 1 else ("are", "their")
        yield join(
            f"{many(parked, 'transaction')} {are} parked: nobody could tell {their} outcome. ",
            _command("tx list --state parked"),
        )
    yield from _old_ones(facts)
    if lost := facts.total("outcomes", "transactions", by="exhausted"):
        were, their = ("was", "its") if lost == 1 else ("were", "their")
        yield join(f"{many(lost, 'transaction')} {were} rolled back because {their} checks were used up.")
    if letters := facts.total("dead_letters", "letters"):
        were, their = ("was", "its") if letters == 1 else ("were", "their")
        yield join(f"{many(letters, 'message')} {were} given up by {their} consumer group.")
    for (group, topic), lag in _far_behind(facts).items():
        yield join(f"Group {group} is {many(lag, 'message')} behind on {topic}. ", _command(f"groups show {group}"))


def _old_ones(facts: Facts) -> Iterator[Markup]:
    old = [row for row in facts.figures["pending"] if row["state"] == "prepared" and row["over_ms"] >= OLD_MS]
    number = sum(row["transactions"] for row in old)
    if not number:
        return
    oldest = took(age_ms(min(row["oldest_at"] for row in old), facts.span.now_ms))
    if number == 1:
        said = f"1 transaction has waited {oldest} for its outcome. "
    else:
        said = f"{count(number)} transactions have waited more than {took(OLD_MS)} for their outcome, up to {oldest}. "
    yield join(said, _command("tx list --state prepared"))


def _far_behind(facts: Facts) -> dict[tuple[str, str], int]:
    lags: dict[tuple[str, str], int] = {}
    for row in facts.figures["lag"]:
        lags[row["group"], row["topic"]] = lags.get((row["group"], row["topic"]), 0) + row["lag"]
    return {place: lag for place, lag in lags.items() if lag > FAR_BEHIND}


def _not_seen(facts: Facts) -> Iterator[Markup]:
    kept, length = facts.place.outcomes_kept_ms, facts.span.now_ms - facts.span.since_ms
    if length > kept:
        yield join(f"The broker keeps outcomes for {took(kept)}: those before that are not in this report.")
    short = sorted(name for name, kept in facts.place.messages_kept_ms.items() if kept and length > kept)
    if short:
        named = ", ".join(short[:5]) + (" and others" if len(short) > 5 else "")
        yield join(f"Some topics keep messages for less than this range, so that older ones may be missing: {named}.")


def _command(text: str) -> Markup:
    return tag("code", f"tallystick {text}")
