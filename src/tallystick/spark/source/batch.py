"""`spark.read`: the offsets between two places, fixed when the DataFrame is first used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import TopicView
from tallystick.spark.schema import Shape
from tallystick.spark.source.planning import Planner
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.reading import read_range
from tallystick.spark.source.resolving import resolve
from tallystick.spark.source.settings import parse_settings
from tallystick.spark.source.topics import Topics, open_link


class BatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = parse_settings(options, streaming=False)
        self._shape = Shape(schema)

    def partitions(self) -> list[InputPartition]:
        settings, planner = self._settings, Planner(self._settings)
        with open_link(settings) as link:
            topics = Topics(link, settings)
            views = topics.require(topics.look())
            starts = resolve(settings.start, views, link, planner.archived, settings.late_start_fails)
            ends = resolve(settings.end, views, link, planner.archived)
        wanted = [
            (_between(views[topic], queue, start, ends[topic][queue]), views[topic])
            for topic, queues in starts.items()
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
