"""The notes of a transfer as a sequence diagram in plain text."""

from collections.abc import Iterable

WIDTH = 30  # between two of the three lines

# Where an arrow begins and ends: bank A, broker, bank B.
ARROWS = {
    "a->broker": (0, 1),
    "broker->a": (1, 0),
    "broker->b": (1, 2),
    "b->broker": (2, 1),
}
PLACES = {"a": 0, "broker": 1, "b": 2}


def draw(notes: Iterable[dict[str, str]]) -> str:
    heads = ("bank A", "broker", "bank B")
    lines = ["".join(f"{head:<{WIDTH + 1}}" for head in heads).rstrip()]
    for note in notes:
        kind, text = note["kind"], note["text"]
        lines.append(_arrow(*ARROWS[kind], text) if kind in ARROWS else _remark(PLACES[kind], text))
    return "\n".join(lines)


def _arrow(begin: int, end: int, text: str) -> str:
    label = f" {text} "
    shaft = f"{label:─^{WIDTH - 1}}"
    drawn = f"{shaft}▶" if begin < end else f"◀{shaft}"
    gaps = [" " * WIDTH, " " * WIDTH]
    gaps[min(begin, end)] = drawn
    return f"│{gaps[0]}│{gaps[1]}│"


def _remark(place: int, text: str) -> str:
    gaps = [" " * WIDTH, " " * WIDTH]
    if place < 2:
        gaps[place] = f" {text}"[:WIDTH].ljust(WIDTH)
        return f"│{gaps[0]}│{gaps[1]}│"
    return f"│{gaps[0]}│{gaps[1]}│ {text}"
