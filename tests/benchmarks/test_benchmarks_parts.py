"""What the benchmarks stand on: rounds by turns, a row's target, and the proof that a web service did its work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.http_clients import measure
from benchmarks.report import Figure
from benchmarks.rounds import Turn, by_turns
from benchmarks.service import TrivialService
from benchmarks.web.proof import prove


def test_ways_are_measured_by_turns_and_compared_within_a_round() -> None:
    order: list[str] = []
    rates = {"alone": [100.0, 10.0, 1_000.0], "block": [50.0, 6.0, 400.0]}

    def turn(way: str) -> Turn:
        order.append(way)
        return Turn(rates[way][order.count(way) - 1], 0.1, 0.1)

    found = by_turns({way: lambda way=way: turn(way) for way in rates})
    assert order == ["alone", "block"] * 3
    assert found.median(lambda turns: turns["alone"].rate) == 100.0
    assert found.median(lambda turns: turns["block"].rate / turns["alone"].rate) == 0.5


@pytest.mark.parametrize(
    ("figure", "wanted", "met"),
    [
        (Figure("a", 5.0, "tx/s"), "", None),
        (Figure("a", 5.0, "tx/s", 4.0), ">= 4", True),
        (Figure("a", 5.0, "ms", 4.0, True), "<= 4", False),
        (Figure("a", 5.0, "tx/s", ratio=0.5, ratio_of="b"), "", None),
        (Figure("a", 5.0, "tx/s", ratio=0.5, ratio_of="b", ratio_target=0.45), ">= 0.45 x", True),
        (Figure("a", 5.0, "tx/s", ratio=0.4, ratio_of="b", ratio_target=0.45), ">= 0.45 x", False),
    ],
)
def test_a_row_says_what_is_wanted_of_it(figure: Figure, wanted: str, met: bool | None) -> None:
    assert (figure.wanted, figure.met) == (wanted, met)


def test_http_clients_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.http_clients.CALLS", 200)
    with TrivialService(tmp_path) as service:
        found = measure(f"{service.url}/credit")
    assert found.keys() == {"lean", "aiohttp"}
    assert min(found.values()) > 0


ORDERS = {"with": {"a", "b"}, "without": {"c"}}


def test_the_same_orders_everywhere_are_proof() -> None:
    prove(ORDERS, ORDERS, ["b", "a"])


@pytest.mark.parametrize(
    ("answered", "stored", "messages", "said"),
    [
        (ORDERS, ORDERS, ["a"], "1 orders without their message: b"),
        (ORDERS, ORDERS, ["a", "b", "c"], "1 messages without their order: c"),
        (ORDERS, ORDERS, ["a", "b", "b"], "1 messages that are there more than once: b"),
        (
            ORDERS,
            {**ORDERS, "without": set()},
            ["a", "b"],
            "1 orders that were answered, but are not in the database: c",
        ),
        (
            ORDERS,
            {**ORDERS, "with": {"a", "b", "d"}},
            ["a", "b", "d"],
            "1 orders in the database that nobody was told of",
        ),
    ],
)
def test_what_differs_is_named(
    answered: dict[str, set[str]], stored: dict[str, set[str]], messages: list[str], said: str
) -> None:
    with pytest.raises(RuntimeError, match=re.escape(said)):
        prove(answered, stored, messages)
