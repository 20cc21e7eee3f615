"""Tables of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tallystick.spark.jobs.report.page.markup import Markup, tag

NUMBER, TEXT, PLOT = "number", "text", "wide"
MOST_ROWS = 200


def table(
    caption: str, heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], nothing: str = "Nothing."
) -> Markup:
    """Heads are (name, class); the first cell of a row names it. It scrolls by itself where it is too wide, and ends
    where nobody would read on."""
    given = list(rows)
    if not given:
        return tag("p", nothing, class_="none")
    body = [_row(heads, row) for row in given[:MOST_ROWS]]
    if len(given) > MOST_ROWS:
        caption += f" (the first {MOST_ROWS} of {len(given):,}; the figures in Parquet have all)"
    head = tag("tr", *[tag("th", name, scope="col", class_=kind or None) for name, kind in heads])
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _row(heads: Sequence[tuple[str, str]], row: Sequence[str]) -> Markup:
    cells = [tag("td", cell, class_=kind or None) for cell, (_, kind) in zip(row[1:], heads[1:], strict=True)]
    return tag("tr", tag("th", row[0], scope="row", class_=heads[0][1] or None), *cells)


def folded(summary: str, content: Markup) -> Markup:
    return tag("details", tag("summary", summary), content)
