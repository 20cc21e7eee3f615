"""The archive job: closed ranges of topics become Parquet, are verified, and only then leave the broker.

For each topic, in steps of a bounded number of messages:

1. *write*: tasks write data files under names of their own; nobody sees them yet;
2. *verify*: tasks read every file back and compare it with the broker's log, which they read in another form;
3. *publish*: one manifest, made exclusively, makes all files of the step count at once;
4. *trim*: the broker drops what manifests cover and this run has verified.

Killed before 3, a run has changed nothing, and the next one that publishes removes its files. Killed after 3, the next
run finds the manifest, verifies again what it did not verify itself, and trims. Of two runs at once one publishes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tallystick.core.errors import InvalidRequest
from tallystick.link import Link
from tallystick.spark.archive.layout import Archive
from tallystick.spark.archive.planning import chosen_topics
from tallystick.spark.archive.run import TopicRun
from tallystick.spark.archive.settings import ArchivedTopic, ArchiveSettings, ArchiveSummary, Report, quiet
from tallystick.spark.tasks import SparkWorkers, Workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveSettings", "ArchiveSummary", "ArchivedTopic", "archive_with", "run_archive"]


def run_archive(spark: SparkSession, settings: ArchiveSettings, report: Report = quiet) -> ArchiveSummary:
    """Archive on the executors of a Spark session, which must reach the same path as the driver."""
    return archive_with(SparkWorkers(spark), settings, report)


def archive_with(workers: Workers, settings: ArchiveSettings, report: Report = quiet) -> ArchiveSummary:
    began = time.monotonic()
    _check(settings)
    with Link(settings.url, patience=settings.patience_seconds) as link:
        names = chosen_topics(link, settings.topics or tuple(settings.to_offsets), settings.pattern)
        done = [TopicRun(workers, settings, report, link, name).run() for name in names]
    return ArchiveSummary(settings.path, settings.dry_run, time.monotonic() - began, done)


def _check(settings: ArchiveSettings) -> None:
    if (settings.older_than_ms is None) != bool(settings.to_offsets):
        raise InvalidRequest(
            "say how far to archive: older than a time, or to offsets, and not both", field="older_than"
        )
    if settings.to_offsets and (
        settings.pattern or set(settings.topics or settings.to_offsets) != set(settings.to_offsets)
    ):
        raise InvalidRequest("the offsets name the topics; do not name others beside them", field="to_offsets")
    if not Archive(settings.path).is_local:
        raise InvalidRequest(
            f"{settings.path}: an archive is written to a directory, which may be a mounted one; its manifests need a "
            "file system that gives a name only once. It can be read from anywhere, once it is copied there",
            field="path",
        )
