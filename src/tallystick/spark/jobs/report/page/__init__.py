"""The page: one HTML file that loads nothing, runs nothing, and can be mailed or archived."""

from __future__ import annotations

from typing import NamedTuple

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.advice import advice
from tallystick.spark.jobs.report.page.markup import Markup, join, tag
from tallystick.spark.jobs.report.page.outcomes import check_section, outcome_section, time_section
from tallystick.spark.jobs.report.page.style import SHEET
from tallystick.spark.jobs.report.page.volume import dead_letter_section, volume_section
from tallystick.spark.jobs.report.page.waiting import age_ms, lag_section, pending_section
from tallystick.spark.jobs.report.page.words import DASH, at, count, many, share, short, size, took

# No script, no request: even if something slipped through the escaping, a browser would not act on it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Section(NamedTuple):
    anchor: str
    title: str
    about: str
    content: list[Markup | None]


def draw(facts: Facts) -> str:
    sections = _sections(facts)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"Tallystick report, {_range(facts)}"),
        tag("style", Markup(SHEET)),
    )
    main = tag("main", _tiles(facts), advice(facts), *[_section(one) for one in sections])
    body = tag("body", _header(facts, sections), main, _footer(facts))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _sections(facts: Facts) -> list[Section]:
    pieces = [
        ("volume", "Volume", "Messages by the time at which the broker stored them.", volume_section),
        ("outcomes", "Outcomes", "Transactions whose outcome came within the range.", outcome_section),
        ("time", "Time to outcome", "From the moment a half message was durable until its outcome was.", time_section),
        ("checks", "Checks", "How often the broker had to ask before it knew.", check_section),
        ("pending", "Pending and parked", "As it was when this report was made.", pending_section),
        ("dead", "Retries and dead letters", "Messages that a consumer group tried and gave up.", dead_letter_section),
        ("lag", "Lag", "As it was when this report was made.", lag_section),
    ]
    return [Section(anchor, title, about, make(facts)) for anchor, title, about, make in pieces]


def _section(section: Section) -> Markup:
    title = tag("h2", section.title, id=f"{section.anchor}-title")
    about = tag("p", section.about, class_="soft")
    return tag("section", title, about, *section.content, id=section.anchor, aria_labelledby=f"{section.anchor}-title")


def _header(facts: Facts, sections: list[Section]) -> Markup:
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    return tag(
        "header",
        tag("h1", "Tallystick report"),
        tag("p", f"{_range(facts)} UTC, in steps of {took(facts.span.step_ms)}", class_="soft"),
        tag("nav", *links, aria_label="Sections"),
    )


def _range(facts: Facts) -> str:
    form = "%Y-%m-%d %H:%M" if (facts.span.until_ms - facts.span.since_ms) >= 600_000 else "%Y-%m-%d %H:%M:%S"
    return f"{at(facts.span.since_ms, form)} {DASH} {at(facts.span.until_ms, form)}"


def _tiles(facts: Facts) -> Markup:
    total = facts.total
    committed = total("outcomes", "transactions", outcome="committed")
    decided = committed + total("outcomes", "transactions", outcome="rolled_back")
    parked, letters = total("pending", "transactions", state="parked"), total("dead_letters", "letters")
    times = facts.overall
    return tag(
        "ul",
        _tile(short(total("volume", "messages")), "messages", f"{size(total('volume', 'bytes'))} of values"),
        _tile(short(decided), "outcomes", f"{count(decided - committed)} rolled back"),
        _tile(share(committed, decided), "committed", f"{count(committed)} of {count(decided)}"),
        _tile(took(times.get("p50_ms")), "to the outcome (median)", f"p99 {took(times.get('p99_ms'))}"),
        _tile(short(total("pending", "transactions", state="prepared")), "without an outcome", _oldest(facts)),
        _tile(short(parked), "parked", "nobody could tell", parked > 0),
        _tile(short(letters), "dead letters", "given up by a group", letters > 0),
        _tile(short(total("lag", "lag")), "messages behind", many(_groups(facts), "group")),
        class_="tiles",
    )


def _groups(facts: Facts) -> int:
    return len({row["group"] for row in facts.figures["lag"]})


def _tile(value: str, name: str, more: str, warn: bool = False) -> Markup:
    return tag("li", tag("b", value), tag("span", name), tag("span", more), class_="warn" if warn else None)


def _oldest(facts: Facts) -> str:
    times = [row["oldest_at"] for row in facts.figures["pending"] if row["state"] == "prepared"]
    return f"oldest {took(age_ms(min(times), facts.span.now_ms))}" if times else "nothing waits"


def _footer(facts: Facts) -> Markup:
    made = f"Made {at(facts.span.now_ms)} UTC from the broker at "
    place = join(made, tag("code", facts.place.url), f" (store {facts.place.store}, version {facts.place.version}).")
    return tag("footer", tag("p", place))
