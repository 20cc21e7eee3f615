"""The table: what was measured, what we want, and the ratio to the bare disk."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table


class Figure(Struct):
    """One line. `target` is for the reader; nothing fails because of it."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    ratio: float | None = None
    ratio_of: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


class Report:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.figures: list[Figure] = []
        self._say = say

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._say(f"{figure.name}: {_number(figure.value)} {figure.unit}")

    def as_json(self) -> str:
        return msgspec.json.encode(self.figures).decode()

    def show(self, console: Console) -> None:
        table = Table(title="Tallystick benchmarks", title_justify="left")
        for name, side in (
            ("what", "left"),
            ("measured", "right"),
            ("target", "right"),
            ("", "left"),
            ("ratio", "left"),
        ):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for one in self.figures:
            target = "" if one.target is None else f"{'<=' if one.at_most else '>='} {_number(one.target)}"
            mark = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[one.met]
            ratio = "" if one.ratio is None else f"{one.ratio:.2f} x {one.ratio_of}"
            table.add_row(one.name, f"{_number(one.value)} {one.unit}", target, mark, ratio)
        console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
