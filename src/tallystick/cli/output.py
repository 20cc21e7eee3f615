"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100_000  # what goes into a pipe or a file is never cut to a screen's width

_STYLES = {
    "committed": "green",
    "rolled_back": "yellow",
    "prepared": "cyan",
    "parked": "red",
    "held": "cyan",
    "waiting": "cyan",
    "done": "green",
    "stopped": "yellow",
    "dropped": "yellow",
}


def console() -> Console:
    """The screen. Colours and width come from the terminal; without one there are no colours and no cuts."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_json_line(data: Any) -> None:
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """A remark beside the data, on stderr so that a pipe gets the data alone."""
    sys.stderr.write(f"tallystick: {text}\n")


def number_of(count: int, word: str) -> str:
    """With the word in its right form: one that takes an s for many."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str = "") -> None:
    """A table; columns whose names end in `#` are numbers and stand to the right. Without rows, `nothing` is said."""
    from rich.table import Table
    from rich.text import Text

    filled = list(rows)
    if not filled and nothing:
        note(nothing)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left", overflow="fold")
    for row in filled:
        table.add_row(*[Text(text, style=_STYLES.get(text, "")) for text in map(_text, row)])
    console().print(table)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return f"{value:,}" if isinstance(value, int) else " ".join(str(value).split())


def when(milliseconds: int | None) -> str:
    """A time as people read it, in local time."""
    if not milliseconds:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().isoformat(" ", "seconds")[:19]


def ago(milliseconds: int | None, now_ms: int | None = None) -> str:
    """How long ago a time was, or how far ahead it is: 12s, 5m, 3h, 2d, in 4s."""
    if not milliseconds:
        return ""
    seconds = ((time.time_ns() // 1_000_000 if now_ms is None else now_ms) - milliseconds) / 1000
    return span(seconds) if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
