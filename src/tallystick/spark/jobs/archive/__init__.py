"""`archive`: closed ranges of topics become Parquet files, are verified, and only then leave the broker."""

from __future__ import annotations

from tallystick.spark.jobs.archive.job import archive_with, run_archive
from tallystick.spark.jobs.archive.settings import ArchivedTopic, ArchiveSettings, ArchiveSummary

__all__ = ["ArchiveSettings", "ArchiveSummary", "ArchivedTopic", "archive_with", "run_archive"]
