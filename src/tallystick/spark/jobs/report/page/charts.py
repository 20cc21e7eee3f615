"""Plots: stacked columns, a bar of shares, a small line. Here is where everything stands; the templates draw it as SVG.

The drawing stretches with the page while the words stay HTML of the reader's own size, so that a plot can be read on a
phone. Every plot has a name for those who hear the page, and its numbers stand in a table beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, log, log10
from typing import NamedTuple

HEIGHT = 100.0  # of a drawing, in its own units: per cent
GAP = 0.16  # of a column's width
LINES = 4
LABELS = 6
BINARY = 1024.0


class Series(NamedTuple):
    """One colour of a plot: what it is called, its class in the style sheet, one value for each column."""

    name: str
    colour: str
    values: Sequence[float]


class Rect(NamedTuple):
    """A piece of a column, or of a bar; `hint` is shown to whoever points at it."""

    colour: str
    x: float
    width: float
    y: float
    height: float
    hint: str = ""


class Column(NamedTuple):
    hint: str
    rects: list[Rect]


class Label(NamedTuple):
    """A word beside a plot, so many per cent along its side."""

    text: str
    at: float


class Plot(NamedTuple):
    """Stacked columns between an axis of numbers and one of names."""

    title: str
    described: str
    width: int
    columns: list[Column]
    lines: list[float]
    ticks: list[Label]
    marks: list[Label]
    series: Sequence[Series]


class Bar(NamedTuple):
    described: str
    rects: list[Rect]


class Sparkline(NamedTuple):
    described: str
    colour: str
    last: int
    path: str


def plot(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    say: Callable[[float], str],
    marks: Mapping[int, str] | None = None,
    base: float = 10.0,
) -> Plot:
    """Stacked columns. `labels` name all of them; `marks` are the words below some (default: a few of the labels).
    `base` is that of the numbers on the axis: BINARY for bytes."""
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    most = max(totals, default=0)
    top, step = _scale(most, base)
    shares = [line * step / top for line in range(round(top / step) + 1)]
    below = _few(labels) if marks is None else marks
    return Plot(
        title=title,
        described=f"{title}: {len(labels)} columns, the highest {say(most)}",
        width=max(len(labels), 1),
        columns=[_column(at, label, series, totals[at], top, say) for at, label in enumerate(labels) if totals[at]],
        lines=[HEIGHT * (1 - share) for share in shares],
        ticks=[Label(say(share * top), 100 * share) for share in shares],
        marks=[Label(text, 100 * (at + 0.5) / len(labels)) for at, text in below.items()],
        series=series,
    )


def _column(
    at: int, label: str, series: Sequence[Series], total: float, top: float, say: Callable[[float], str]
) -> Column:
    shown = [one for one in series if one.values[at]]
    told = "\n".join([f"{label}: {say(total)}", *[f"{one.name}: {say(one.values[at])}" for one in shown[::-1]]])
    rects, floor_at = [], HEIGHT
    for one in shown:
        height = HEIGHT * one.values[at] / top
        floor_at -= height
        rects.append(Rect(one.colour, at + GAP / 2, 1 - GAP, floor_at, height))
    return Column(told, rects)


def _few(labels: Sequence[str]) -> dict[int, str]:
    every = max(1, -(-len(labels) // LABELS))
    return {place: labels[place] for place in range(0, len(labels), every)}


def _scale(most: float, base: float) -> tuple[float, float]:
    """The top of an axis and the step of its lines: 1, 2 or 5 times a power of ten, in the unit of the numbers."""
    unit = base ** floor(log(max(most, 1), base)) if base == BINARY else 1.0
    rough = max(most / unit, 1) / LINES
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough) * unit
    step = max(step, 1.0)  # there is no half message
    return step * max(1, -(-most // step)), step


def shares(title: str, series: Sequence[Series], say: Callable[[float], str]) -> Bar:
    """One bar, cut into shares of the whole; each series has one value."""
    whole = sum(one.values[0] for one in series) or 1
    rects, place = [], 0.0
    for one in series:
        width = 100 * one.values[0] / whole
        if width:
            rects.append(_piece(one.colour, place, width, f"{one.name}: {say(one.values[0])}"))
        place += width
    told = ", ".join(f"{one.name} {say(one.values[0])}" for one in series if one.values[0])
    return Bar(f"{title}: {told}", rects)


def length(title: str, value: float, most: float, colour: str) -> Bar:
    """A bar as long as a value is, beside the longest."""
    width = 100 * value / most if most else 0.0
    return Bar(title, [_piece(colour, 0, max(width, 0.6) if value else 0)])


def _piece(colour: str, x: float, width: float, hint: str = "") -> Rect:
    return Rect(colour, x, width, y=0, height=10, hint=hint)


def line(title: str, values: Sequence[float], colour: str) -> Sparkline:
    """A small filled line without an axis: the form of a course, not its size."""
    most = max(values, default=0) or 1
    points = [f"{place:g} {20 - 19 * value / most:.2f}" for place, value in enumerate(values)]
    last = max(len(values) - 1, 1)
    return Sparkline(title, colour, last, f"M0 20 L{' L'.join(points)} L{last} 20 Z" if values else "")
