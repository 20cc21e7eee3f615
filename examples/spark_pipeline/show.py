"""What one sees while the pipeline runs, and the verdict at its end."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

from proof import Evidence, Line, by_product
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 5.0


class Picture(NamedTuple):
    """How far everything is; None where the broker does not answer."""

    sold: int
    logged: int | None
    batch: int | None  # the last of Spark's that the broker has
    results: int | None
    pending: int | None  # transactions of the shop without an outcome
    bookings: int
    booked: int

    @property
    def settled(self) -> bool:
        """Every order that the shop has sold has come to the books (more, if something is broken), and none is open."""
        return self.booked >= self.sold and self.pending == 0

    def __str__(self) -> str:
        logged, batch, results = ("-" if one is None else f"{one:,}" for one in (self.logged, self.batch, self.results))
        return (
            f"{self.sold:,} sold > {logged} in orders > Spark batch {batch} > {results} in revenue > "
            f"{self.booked:,} booked"
        )


class Watch:
    """One line that changes, on a terminal; elsewhere a line now and then. Events get a line of their own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting")
        self._began = time.monotonic()
        self._printed_at = 0.0

    def __enter__(self) -> "Watch":
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def say(self, text: str) -> None:
        style = "bold red" if text.startswith("kill") else "bold"
        self._console.print(Text(f"{self._seconds():5.0f} s  {text}", style=style), soft_wrap=True)

    def show(self, picture: Picture, kills: Mapping[str, int]) -> None:
        text = f"{picture}; {sum(kills.values())} kills"
        self._status.update(text)
        if not self._console.is_terminal and time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            self._console.print(f"{self._seconds():5.0f} s  {text}", soft_wrap=True)

    def _seconds(self) -> float:
        return time.monotonic() - self._began


def show_verdict(console: Console, found: Evidence, lines: list[Line], kills: Mapping[str, int], repeated: int) -> None:
    table = Table("product", box=None)
    for column in ("orders sold", "booked", "cents sold", "booked"):
        table.add_column(column, justify="right")
    for product, sold, earned, booked, credited in by_product(found):
        right = sold == booked and earned == credited
        table.add_row(product, f"{sold:,}", f"{booked:,}", f"{earned:,}", f"{credited:,}", style="" if right else "red")
    console.print(table)
    proven = all(line.holds for line in lines)
    each = ", ".join(f"{role} {number}" for role, number in sorted(kills.items()))
    remark = (
        f"survived {sum(kills.values())} kills ({each}); batches that were sent and then repeated by Spark: {repeated}"
    )
    title = "the books are the shop's, to the cent" if proven else "THE PROOF FAILED"
    content = Text("\n").join([*map(_claim, lines), Text(), Text(remark)])
    console.print(Panel(content, title=title, title_align="left", border_style="green" if proven else "red"))


def _claim(line: Line) -> Text:
    mark = ("yes  ", "green") if line.holds else (" NO  ", "bold red")
    return Text.assemble(mark, line.claim, (f": {line.detail}" if line.detail else "", "" if line.holds else "red"))
