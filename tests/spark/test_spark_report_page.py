"""The report's page: it loads and runs nothing, hides nothing, and shows text as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_support import HOUR, MINUTE, SPAN, T0, facts, time

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page import draw
from tallystick.spark.jobs.report.page.charts import BINARY, Series, plot
from tallystick.spark.jobs.report.page.words import share, short, size, step_labels, step_marks, took
from tallystick.spark.jobs.report.settings import ReportSettings, span_of

HIDDEN = "'shop' may not read every topic and every group (it may read topics: shop.*; groups: *)"
EVIL = "</style><script>alert(1)</script><img src=x onerror='alert(2)'>\" onload=\"alert(3)"
EMPTY_ELEMENTS = {"meta", "img"}
REFERENCES = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Reader(HTMLParser):
    """Takes a page apart: elements, attributes, text; and complains about one that is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def said(self) -> str:
        return " ".join(" ".join(self.text).split())


def outside(page: str) -> list[str]:
    """Whatever in a page would load something, run something, or lead elsewhere."""
    found = []
    for name, attributes in Reader(page).elements:
        if name in {"script", "link", "iframe", "object", "embed", "img", "base", "form"}:
            found.append(name)
        found += [f"{name} {key}" for key in attributes if key.startswith("on")]
        found += [
            f"{name} {key}={value}"
            for key, value in attributes.items()
            if key in REFERENCES and not (value or "").startswith("#")
        ]
    return found + re.findall(r"(?i)url\([^)]*\)|@import|javascript:|data:", page)


def full() -> Facts:
    """Something in every figure, with hostile text wherever text is not held to a grammar."""
    outcome = {"transactions": 7, "messages": 9}
    return facts(
        volume=[
            {"step": time(minute * MINUTE), "topic": f"topic-{topic}", "messages": 10 + topic, "bytes": 5000}
            for minute in range(60)
            for topic in range(9)
        ],
        outcomes=[
            {"group": "shop", "outcome": "committed", "by": "producer", **outcome},
            {"group": "shop", "outcome": "rolled_back", "by": EVIL, **outcome},
        ],
        outcomes_over_time=[{"step": time(0), "outcome": "committed", "by": "producer", "transactions": 7}],
        time_to_outcome=[
            {"group": group, "transactions": 7, "p50_ms": 3.5, "p95_ms": 90.0, "p99_ms": 1500.0, "most_ms": 61_000}
            for group in (None, "shop")
        ],
        time_to_outcome_histogram=[
            {"over_ms": 2, "upto_ms": 5, "outcome": "committed", "transactions": 6},
            {"over_ms": 86_400_000, "upto_ms": None, "outcome": "rolled_back", "transactions": 1},
        ],
        checks=[{"checks": number, "outcome": "committed", "transactions": 5} for number in (0, 3, 40)],
        pending=[
            {
                "group": "shop",
                "state": state,
                "over_ms": HOUR,
                "upto_ms": 6 * HOUR,
                "transactions": 4,
                "messages": 8,
                "most_checks": 15,
                "oldest_at": time(0),
            }
            for state in ("prepared", "parked")
        ],
        pending_reasons=[{"state": "parked", "reason": EVIL, "transactions": 4}],
        dead_letters=[
            {
                "group": "mail",
                "topic": EVIL,
                "letters": 2,
                "attempts": 32,
                "most_attempts": 16,
                "last_at": time(0),
            }
        ],
        dead_letter_reasons=[{"group": "mail", "reason": EVIL, "letters": 2}],
        lag=[
            {
                "group": "mail",
                "topic": "topic-1",
                "queue": queue,
                "offset": 5,
                "start": 0,
                "end": 20_005,
                "lag": 20_000,
                "leased": 1,
            }
            for queue in (0, 1)
        ],
    )


@pytest.mark.parametrize("shown", [full(), facts()], ids=["full", "empty"])
def test_a_page_needs_nothing_from_elsewhere(shown: Facts) -> None:
    page = draw(shown)
    assert outside(page) == []
    reader = Reader(page)
    assert reader.open == []
    policies = [attributes["content"] for name, attributes in reader.elements if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_what_comes_from_elsewhere_is_noticed() -> None:
    """The negative control."""
    page = "<script src='https://x/y.js'></script><img src=a><a href='#b' onclick=c>d</a><style>@import</style>"
    assert outside(page) == ["script", "script src=https://x/y.js", "img", "img src=a", "a onclick", "@import"]


def test_hostile_text_is_shown_as_text() -> None:
    reader = Reader(draw(full()))
    assert reader.said().count("<script>alert(1)</script>") >= 4
    assert not [name for name, _ in reader.elements if name in ("script", "img")]


def test_an_attribute_cannot_be_left() -> None:
    """A group's name stands in the description of its bar, too."""
    lag = {"group": EVIL, "topic": "t", "queue": 0, "offset": 0, "start": 0, "end": 1, "lag": 1, "leased": 0}
    elements = Reader(draw(facts(lag=[lag]))).elements
    assert [one["aria-label"] for name, one in elements if name == "svg"] == [f"{EVIL} on t: 1 message behind"]


def test_every_section_says_so_when_there_is_nothing() -> None:
    said = Reader(draw(facts())).said()
    for words in (
        "No message was stored in this range.",
        "No transaction got its outcome in this range.",
        "No prepared transaction got its outcome in this range.",
        "Every transaction has its outcome.",
        "No group gave a message up in this range.",
        "There is no consumer group.",
    ):
        assert words in said
    assert "Worth a look" not in said


def test_what_needs_somebody_is_said_first() -> None:
    said = Reader(draw(full())).said()
    look = said[said.index("Worth a look") : said.index("Messages by the time at which")]
    for words in (
        "4 transactions are parked",
        "4 transactions have waited more than 5 min for their outcome, up to 2 h.",
        "2 messages were given up",
        "Group mail is 40,000 messages behind on topic-1",
    ):
        assert words in look


def one_of_each(lag: int = 2_835, checks: int = 0) -> Facts:
    waiting = {"group": "shop", "messages": 1, "most_checks": checks, "transactions": 1, "oldest_at": time(0)}
    ages = {"over_ms": HOUR, "upto_ms": 6 * HOUR}
    return facts(
        outcomes=[
            {"group": "shop", "outcome": "rolled_back", "by": "exhausted", "transactions": 1, "messages": 1},
        ],
        pending=[{**waiting, **ages, "state": state} for state in ("prepared", "parked")],
        dead_letters=[
            {"group": "mail", "topic": "t", "letters": 1, "attempts": 1, "most_attempts": 1, "last_at": time(0)}
        ],
        lag=[{"group": "mail", "topic": "t", "queue": 0, "offset": 0, "start": 0, "end": lag, "lag": lag, "leased": 0}],
    )


def test_one_is_not_many() -> None:
    page = draw(one_of_each())
    said = Reader(page).said()
    for words in (
        "1 transaction is parked: nobody could tell its outcome.",
        "1 transaction has waited 2 h for its outcome.",
        "1 transaction was rolled back because its checks were used up.",
        "1 message was given up by its consumer group.",
        "Group mail is 2,835 messages behind on t.",
        "messages behind 1 group ",
    ):
        assert words in said
    assert not re.findall(r"\b1 (?:transactions|messages|groups|letters)\b", page)


def test_young_ones_are_nothing_to_look_at() -> None:
    row = {"group": "shop", "state": "prepared", "transactions": 410, "messages": 410, "most_checks": 0}
    young = {**row, "over_ms": 60_000, "upto_ms": 300_000, "oldest_at": time(2 * HOUR - 299_000)}
    assert "Worth a look" not in Reader(draw(facts(pending=[young]))).said()
    old = {**row, "over_ms": 300_000, "upto_ms": HOUR, "oldest_at": time(HOUR), "transactions": 3}
    said = Reader(draw(facts(pending=[young, old]))).said()
    assert "3 transactions have waited more than 5 min for their outcome, up to 1 h." in said


def test_a_group_that_keeps_up_is_nothing_to_look_at() -> None:
    said = Reader(draw(one_of_each(lag=1_000))).said()
    assert "Group mail is" not in said


def test_no_check_that_failed_is_not_no_check() -> None:
    assert "No check has been made so far." in Reader(draw(one_of_each())).said()
    assert "No check has failed so far." in Reader(draw(one_of_each(checks=1))).said()


def test_what_the_broker_no_longer_keeps_is_said() -> None:
    span = span_of(ReportSettings(url="", since_ms=T0 - 30 * 24 * HOUR, until_ms=T0), T0)
    trimmed = [{"topic": "orders", "queue": queue, "first": 0, "last": 599, "messages": 600} for queue in range(2)] + [
        {"topic": "mails", "queue": 0, "first": 7, "last": 7, "messages": 1}
    ]
    said = Reader(draw(facts(span, missing=trimmed))).said()
    assert "keeps outcomes for 7 d" in said
    assert "Topic orders: up to 1,200 messages of this range were trimmed and are not counted." in said
    assert "Topic mails: up to 1 message of this range was trimmed and is not counted." in said


def test_numbers_stand_beside_the_plots() -> None:
    said = Reader(draw(full())).said()
    for cell in ("topic-8 1,080", "1.02 min", "3.5 ms", "1.5 s", "other topics", "more than 10", "2 of 2"):
        assert cell in said


def test_every_plot_has_a_name_for_those_who_hear_it() -> None:
    elements = Reader(draw(full())).elements
    drawings = [attributes for name, attributes in elements if name == "svg"]
    assert len(drawings) > 10
    assert all(one["role"] == "img" and one["aria-label"] for one in drawings)
    regions = [attributes for _, attributes in elements if attributes.get("class") == "scroll"]
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in regions)
    assert [attributes["lang"] for name, attributes in elements if name == "html"] == ["en"]


def test_columns_are_as_high_as_their_values() -> None:
    series = [Series("a", "c0", [0, 10, 20]), Series("b", "c1", [0, 0, 20])]
    drawn = plot("Things", ["x", "y", "z"], series, short)
    assert [column.hint for column in drawn.columns] == ["y: 10\na: 10", "z: 40\nb: 20\na: 20"]
    rects = [rect for column in drawn.columns for rect in column.rects]
    assert [(one.colour, one.height, one.y) for one in rects] == [
        ("c0", 25.0, 75.0),
        ("c0", 50.0, 50.0),
        ("c1", 50.0, 0.0),
    ]


def test_a_plot_is_drawn_where_it_was_computed() -> None:
    row = {"step": time(0), "topic": "orders", "messages": 3, "bytes": 1}
    reader = Reader(draw(facts(volume=[row])))
    first = next(one for name, one in reader.elements if name == "rect")
    assert first == {"x": "0.08", "y": "0", "width": "0.84", "height": "100", "class": "c0"}
    lines = [one for name, one in reader.elements if name == "line"]
    assert [one["y1"] for one in lines][:4] == ["100", "66.667", "33.333", "0"]
    assert "08:00: 3\norders: 3" in "".join(reader.text)


@pytest.mark.parametrize(
    ("most", "base", "ticks"),
    [
        (0, 10.0, ["0", "1"]),
        (3, 10.0, ["0", "1", "2", "3"]),
        (37, 10.0, ["0", "10", "20", "30", "40"]),
        (1_300_000, 10.0, ["0", "500 k", "1 M", "1.5 M"]),
        (1_900_000, BINARY, ["0 B", "512 KiB", "1 MiB", "1.5 MiB", "2 MiB"]),
    ],
)
def test_an_axis_has_round_numbers(most: float, base: float, ticks: list[str]) -> None:
    drawn = plot("Things", ["x"], [Series("a", "c0", [most])], short if base == 10.0 else size, base=base)
    assert [tick.text for tick in drawn.ticks] == ticks


@pytest.mark.parametrize(
    ("length", "step", "first", "marks"),
    [
        (HOUR, MINUTE, "08:00", ["08:00", "08:10", "08:20", "08:30", "08:40", "08:50"]),
        (24 * HOUR, 15 * MINUTE, "Jan 15 08:00", ["08:00", "12:00", "16:00", "20:00", "Jan 16", "04:00"]),
        (90 * 24 * HOUR, 24 * HOUR, "Jan 15", None),
        (30_000, 1_000, "08:00:00", ["08:00:00", "08:00:05", "08:00:10", "08:00:15", "08:00:20", "08:00:25"]),
    ],
)
def test_a_time_axis_has_round_times(length: int, step: int, first: str, marks: list[str] | None) -> None:
    span = span_of(ReportSettings(url="", since_ms=T0, until_ms=T0 + length), T0 + length)
    assert span.step_ms == step
    assert len(span.steps) <= 101
    assert step_labels(span)[0] == first
    found = list(step_marks(span).values())
    assert found == marks or (marks is None and 4 <= len(found) <= 8)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (took(0.5), "0.5 ms"),
        (took(1500), "1.5 s"),
        (took(90_000), "1.5 min"),
        (took(3 * 86_400_000), "3 d"),
        (took(None), "\N{EN DASH}"),
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(5 * 1024**5), "5,120 TiB"),
        (short(9_999), "9,999"),
        (short(12_345), "12.3 k"),
        (short(2_500_000_000), "2.5 G"),
        (share(1, 3), "33.3 %"),
        (share(99_999, 100_000), "> 99.9 %"),
        (share(1, 100_000), "< 0.1 %"),
        (share(5, 5), "100 %"),
        (share(0, 0), "\N{EN DASH}"),
    ],
)
def test_numbers_as_people_read_them(said: Any, expected: str) -> None:
    assert said == expected


@pytest.mark.full
def test_a_page_stays_small_with_many_topics() -> None:
    many = [
        {"step": time(minute * MINUTE), "topic": f"t{topic}", "messages": 1, "bytes": 1}
        for minute in range(60)
        for topic in range(500)
    ]
    page = draw(facts(SPAN, volume=many))
    assert "the first 200 of 500" in page
    assert len(page) < 500_000


def test_what_the_token_may_not_read_is_worth_a_look() -> None:
    all_read = facts()
    limited = all_read._replace(broker=all_read.broker._replace(hidden=HIDDEN))
    said = Reader(draw(limited)).said()
    assert "Worth a look" in said
    assert f"The token {HIDDEN}. This report leaves out what the token may not read." in said
    assert "may not read" not in Reader(draw(all_read)).said()
