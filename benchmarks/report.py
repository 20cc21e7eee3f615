"""The table: what was measured, what we want, and the ratio to the bare disk."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table


class Figure(Struct):
    """One line. `target` is what the value is to be, `ratio_target` what the ratio is to be at least; both are for the
    reader, and nothing fails because of them."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    ratio: float | None = None
    ratio_of: str = ""
    ratio_target: float | None = None

    @property
    def met(self) -> bool | None:
        if self.ratio is not None and self.ratio_target is not None:
            return self.ratio >= self.ratio_target
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target

    @property
    def wanted(self) -> str:
        if self.ratio_target is not None:
            return f">= {self.ratio_target:.2f} x"
        return "" if self.target is None else f"{'<=' if self.at_most else '>='} {_number(self.target)}"

    @property
    def compared(self) -> str:
        return "" if self.ratio is None else f"{self.ratio:.2f} x {self.ratio_of}"


class Report:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.figures: list[Figure] = []
        self._say = say

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        compared = figure.compared and f" ({figure.compared})"
        self._say(f"{figure.name}: {_number(figure.value)} {figure.unit}{compared}")

    def as_json(self) -> str:
        return msgspec.json.encode(self.figures).decode()

    def show(self, console: Console) -> None:
        caption = (
            "Ratios are medians of each round's own. Targets are those we set ourselves: one that is missed here is no "
            "fault of your machine, and on a busy one all of them mean little."
        )
        table = Table(title="Tallystick benchmarks", title_justify="left", caption=caption, caption_justify="left")
        for name, side in (
            ("what", "left"),
            ("measured", "right"),
            ("target", "right"),
            ("", "left"),
            ("ratio", "left"),
        ):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for one in self.figures:
            mark = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[one.met]
            table.add_row(one.name, f"{_number(one.value)} {one.unit}", one.wanted, mark, one.compared)
        console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
