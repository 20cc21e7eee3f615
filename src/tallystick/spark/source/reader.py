"""The readers that Spark drives: `partitions` once on the driver, then `read` in each task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.schema import Shape
from tallystick.spark.source.marks import (
    Advance,
    StreamMark,
    advance,
    ends,
    first_begin,
    first_end,
    is_pin,
    pin,
    read_mark,
)
from tallystick.spark.source.messages import read_range
from tallystick.spark.source.ranges import Planner, Range
from tallystick.spark.source.settings import parse_settings
from tallystick.spark.source.topics import Topics, Views, open_link, resolve


class BatchReader(DataSourceReader):
    """`spark.read`: the offsets between two places, fixed when the DataFrame is first used."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = parse_settings(options, streaming=False)
        self._shape = Shape(schema)

    def partitions(self) -> list[InputPartition]:
        settings, planner = self._settings, Planner(self._settings)
        with open_link(settings) as link:
            topics = Topics(link, settings)
            views = topics.require(topics.look())
            begins = resolve(settings.start, views, link, planner.archived, settings.late_start_fails)
            upto = resolve(settings.end, views, link, planner.archived)
        wanted = [
            (_between(views[topic], queue, start, upto[topic][queue]), views[topic])
            for topic, queues in begins.items()
            for queue, start in queues.items()
        ]
        return list(planner.tasks(wanted))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Where there is nothing to read, Spark makes a partition of its own and reads that.
        return read_range(self._settings, self._shape, partition) if isinstance(partition, Range) else iter(())


def _between(view: TopicView, queue: int, start: int, end: int) -> Range:
    if start > end:
        raise InvalidRequest(
            f"{view.name}/{queue}: the start, offset {start}, lies behind the end, offset {end}; see the options "
            "startingOffsets and endingOffsets, or those with a timestamp",
            field="startingOffsets",
        )
    return Range(view.name, queue, start, end, created=view.created_at)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: micro-batches from the place in the checkpoint on.

    Spark keeps one of these for the whole query, in a process of its own, and sends copies to the tasks, which only
    read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = parse_settings(options, streaming=True)
        self._shape = Shape(schema)
        self._planner = Planner(self._settings)
        self._link: Link | None = None  # opened where it is used: a connection cannot travel to the tasks
        self._topics: Topics | None = None
        self._seen: Views | None = None
        self._target: Views | None = None
        self._last_batch = float("-inf")

    # --- where to read ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return pin(self._settings.start.kind)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._settings.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if is_pin(start):
            return self._first_end(most)
        begin = read_mark(start)
        if self._target is not None:
            upto = self._advanced(begin, self._target, most).mark
            return start if upto == begin else upto.written()
        # Nothing is left of what was seen last: then this is also the wait for something to come.
        idle = self._seen is not None and ends(self._seen) == begin
        found = self._advanced(begin, self._look(self._settings.poll_wait if idle else 0.0), most)
        if found.mark == begin or self._too_few(found.waiting):
            return start
        self._last_batch = time.monotonic()
        return found.mark.written()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Shown in the query's progress: less the batch's own end, it is the lag."""
        if self._seen is None:
            return None
        written = ends(self._seen).written()
        return {topic: written[topic] for topic in self._seen}

    def _first_end(self, most: int | None) -> dict[str, Any]:
        """The end of batch 0, and in it the start, looked up once: Spark stores it before anything is read."""
        views = self._look() if self._target is None else self._target
        link, topics = self._opened()
        topics.require(views)
        settings = self._settings
        offsets = resolve(settings.start, views, link, self._planner.archived, settings.late_start_fails)
        begin = StreamMark(offsets, ends(views).created)
        found = self._advanced(begin, views, most)
        if found.waiting:
            self._last_batch = time.monotonic()
        return first_end(begin, found.mark)

    def _advanced(self, begin: StreamMark, views: Views, most: int | None) -> Advance:
        return advance(begin, views, most, self._planner.loss, archived=bool(self._settings.archive))

    def _too_few(self, waiting: int) -> bool:
        """Whether the batch is put off for minOffsetsPerTrigger; if so, a moment has passed."""
        least = self._settings.min_per_trigger
        if least is None or waiting >= least or time.monotonic() - self._last_batch >= self._settings.max_delay:
            return False
        time.sleep(min(self._settings.poll_wait, self._settings.max_delay))
        return True

    # --- what to read ----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, upto = first_begin(end) if is_pin(start) else read_mark(start), read_mark(end)
        if begin is None:
            return []
        views = self._look() if self._seen is None else self._seen  # a batch that is repeated comes without a look
        wanted: list[tuple[Range, TopicView]] = []
        for topic, places in upto.queues.items():
            view, created = views.get(topic), upto.created[topic]
            if view is None or view.created_at != created:
                self._planner.loss.deleted(topic, anew=view is not None)
                continue
            wanted += [
                (Range(topic, queue, begin.begin(view, queue), places[queue], created=created), view)
                for queue in places
            ]
        return list(self._planner.tasks(wanted))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # A batch without partitions is read by one of Spark's own making.
        return read_range(self._settings, self._shape, partition) if isinstance(partition, Range) else iter(())

    # --- the rest --------------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint says where the query is, and the broker keeps messages by age, not by readers."""

    def stop(self) -> None:
        if self._link is not None:
            self._link.close()

    def _look(self, wait: float = 0.0) -> Views:
        self._seen = self._opened()[1].look(wait)
        return self._seen

    def _opened(self) -> tuple[Link, Topics]:
        if self._link is None or self._topics is None:
            self._link = open_link(self._settings)
            self._topics = Topics(self._link, self._settings)
        return self._link, self._topics


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """In the place of a reader whose options were refused."""

    def __init__(self, why: TallystickError) -> None:
        self._why = why

    def initialOffset(self) -> dict[str, Any]:
        raise self._why

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._why

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._why

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._why
