"""Plots as inline SVG: stacked columns, a bar of shares, a small line.

The drawing stretches with the page while the words stay HTML of the reader's own size, so that a plot can be read on a
phone. Every plot has a name for those who hear the page, and its numbers stand in a table beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, log, log10
from typing import NamedTuple

from tallystick.spark.jobs.report.page.markup import Markup, join, tag

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


def columns(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    say: Callable[[float], str],
    marks: Mapping[int, str] | None = None,
    base: float = 10.0,
) -> Markup:
    """Stacked columns. `labels` name all of them; `marks` are the words below some (default: a few of the labels).
    `base` is that of the numbers on the axis: BINARY for bytes."""
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    most = max(totals, default=0)
    top, step = _scale(most, base)
    lines = [line * step / top for line in range(round(top / step) + 1)]
    drawing = tag(
        "svg",
        *[_grid(line) for line in lines],
        *[_column(place, label, series, totals[place], top, say) for place, label in enumerate(labels)],
        viewBox=f"0 0 {max(len(labels), 1)} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}: {len(labels)} columns, the highest {say(most)}",
    )
    ticks = [tag("span", say(line * top), style=f"bottom:{100 * line:.2f}%") for line in lines]
    return tag(
        "div",
        tag("div", *ticks, class_="ticks", aria_hidden="true"),
        tag("div", drawing, class_="drawing"),
        tag("div", *_below(len(labels), _few(labels) if marks is None else marks), class_="below", aria_hidden="true"),
        class_="plot",
    )


def _column(
    place: int, label: str, series: Sequence[Series], total: float, top: float, say: Callable[[float], str]
) -> Markup | None:
    if not total:
        return None
    shown = [one for one in series if one.values[place]]
    told = "\n".join([f"{label}: {say(total)}", *[f"{one.name}: {say(one.values[place])}" for one in shown[::-1]]])
    rects, floor_at = [], HEIGHT
    for one in shown:
        height = HEIGHT * one.values[place] / top
        floor_at -= height
        rects.append(tag("rect", x=place + GAP / 2, y=floor_at, width=1 - GAP, height=height, class_=one.colour))
    return tag("g", tag("title", told), *rects)


def _grid(share: float) -> Markup:
    y = HEIGHT * (1 - share)
    return tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid", vector_effect="non-scaling-stroke")


def _below(number: int, marks: Mapping[int, str]) -> list[Markup]:
    return [tag("span", text, style=f"left:{100 * (place + 0.5) / number:.2f}%") for place, text in marks.items()]


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


def shares(title: str, series: Sequence[Series], say: Callable[[float], str]) -> Markup:
    """One bar, cut into shares of the whole; each series has one value."""
    whole = sum(one.values[0] for one in series) or 1
    pieces, place = [], 0.0
    for one in series:
        width = 100 * one.values[0] / whole
        if width:
            hint = tag("title", f"{one.name}: {say(one.values[0])}")
            pieces.append(tag("rect", hint, x=place, y=0, width=width, height=10, class_=one.colour))
        place += width
    told = ", ".join(f"{one.name} {say(one.values[0])}" for one in series if one.values[0])
    return _bar(f"{title}: {told}", pieces)


def length(title: str, value: float, most: float, colour: str) -> Markup:
    """A bar as long as a value is, beside the longest."""
    width = 100 * value / most if most else 0.0
    return _bar(title, [tag("rect", x=0, y=0, width=max(width, 0.6) if value else 0, height=10, class_=colour)])


def _bar(title: str, pieces: Sequence[Markup]) -> Markup:
    return tag(
        "svg", *pieces, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar", role="img", aria_label=title
    )


def line(title: str, values: Sequence[float], colour: str) -> Markup:
    """A small filled line without an axis: the form of a course, not its size."""
    most = max(values, default=0) or 1
    points = [f"{place:g} {20 - 19 * value / most:.2f}" for place, value in enumerate(values)]
    last = max(len(values) - 1, 1)
    return tag(
        "svg",
        tag("path", d=f"M0 20 L{' L'.join(points)} L{last} 20 Z", class_=colour) if values else None,
        viewBox=f"0 0 {last} 20",
        preserveAspectRatio="none",
        class_="line",
        role="img",
        aria_label=title,
    )


def legend(series: Sequence[Series]) -> Markup:
    marks = [tag("li", tag("i", class_=one.colour), one.name) for one in series]
    return tag("ul", join(*marks), class_="legend")
