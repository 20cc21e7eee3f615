"""Messages of a range that are in neither the broker nor the archive: what a report would leave out without a word.

When a message was stored, only the message tells. So of the offsets that were trimmed it is known that they are older
than the first message that is kept, and no more: the counts are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.jobs.report.settings import Span
from tallystick.spark.source.ranges import Archived, Range, kept
from tallystick.spark.source.topics import first_stored

COLUMNS = ("topic", "queue", "first", "last", "messages")


def missing_messages(broker: Link, views: Iterable[TopicView], archive: str, span: Span) -> list[dict[str, Any]]:
    """Ranges of offsets, with both ends, that may have been stored in the range of the report and cannot be read."""
    archived = Archived(archive)
    return [
        dict(zip(COLUMNS, (view.name, queue, first, after - 1, after - first), strict=True))
        for view in views
        if any(start > view.begin(queue) for queue, start in enumerate(view.starts)) and view.created_at < span.until_ms
        for queue, (first, after) in _gaps(view, first_stored(broker, view.name, span.since_ms), archived, span)
    ]


def _gaps(
    view: TopicView, kept_since: list[int], archived: Archived, span: Span
) -> Iterator[tuple[int, tuple[int, int]]]:
    for queue, start in enumerate(view.starts):
        begin = view.begin(queue)
        if start <= begin or kept_since[queue] > start:
            continue  # nothing was trimmed, or all of it was stored before the range
        wanted = Range(view.name, queue, _first_wanted(view, queue, archived, span), start)
        _, gaps = kept(wanted, start, archived.covered(view, queue))
        yield from ((queue, gap) for gap in gaps)


def _first_wanted(view: TopicView, queue: int, archived: Archived, span: Span) -> int:
    """The first of the trimmed offsets that may belong to the range, by what the archive knows of their times."""
    first, end = archived.covered(view, queue)
    found = archived.at_time(view, queue, span.since_ms) if first < end else 0
    return view.begin(queue) if found <= first else found
