"""The job: read the sides, compare them, say what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F

from tallystick.spark.jobs.reconcile.compare import compare, counts, empty_traces
from tallystick.spark.jobs.reconcile.findings import findings
from tallystick.spark.jobs.reconcile.kinds import KINDS
from tallystick.spark.jobs.reconcile.reach import measure
from tallystick.spark.jobs.reconcile.reading import Reader, Snapshots
from tallystick.spark.jobs.reconcile.settings import ReconcileSettings
from tallystick.spark.jobs.reconcile.summary import Example, ReconcileSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS_PER_PARTITION = 250_000  # what a task adds up within some hundred megabytes
MOST_PARTITIONS = 2_000


def quiet(text: str) -> None:
    """Nobody wants to know how far the job is."""


def run_reconcile(
    spark: SparkSession, settings: ReconcileSettings, report: Callable[[str], None] = quiet
) -> ReconcileSummary:
    """Compare all sides that are given; see `ReconcileSummary.verdict`."""
    settings.check()
    began = time.monotonic()
    read = Reader(spark, settings, report).read()
    measured = measure(settings, read)
    report(f"comparing {read.rows:,} rows")
    groups = [consumer.group for consumer in settings.consumers]
    traces = [empty_traces(spark, len(groups)), *read.traces]
    observation = Observation()
    judged = compare(traces, measured.bounds, _partitions(read)).observe(observation, *counts(measured.bounds))
    found = findings(judged, measured.bounds, groups, read.places.names(spark))
    found = found.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    codes = {str(row["code"]): (str(row["kind"]), int(row["count"])) for row in _by_code(found)}
    by_kind: dict[str, int] = {kind: sum(number for of, number in codes.values() if of == kind) for kind in KINDS}
    if settings.output:
        report(f"writing {settings.output}")
        _write(found, settings.output)
    return ReconcileSummary(
        found=by_kind,
        codes={code: number for code, (_, number) in sorted(codes.items())},
        counts=_named(observation.get, groups),
        reach=measured.reach,
        since_ms=settings.since_ms,
        until_ms=settings.until_ms if settings.until_ms is not None else read.now_ms,
        examples=tuple(_examples(found, [kind for kind in by_kind if by_kind[kind]], settings.examples)),
        notes=tuple(_notes(settings, read)),
        output=settings.output,
        seconds=time.monotonic() - began,
    )


def _partitions(read: Snapshots) -> int:
    return max(2, min(MOST_PARTITIONS, -(-read.rows // ROWS_PER_PARTITION)))


def _by_code(found: DataFrame) -> list[Row]:
    return found.groupBy("code", "kind").count().collect()


def _write(found: DataFrame, output: str) -> None:
    """A directory, as Spark writes it, with one file of data: there is little to say when all goes well."""
    writer = found.coalesce(1).write.mode("overwrite")
    if output.endswith(".csv"):
        writer.option("header", "true").csv(output)
    else:
        writer.parquet(output)


def _examples(found: DataFrame, kinds: list[str], most: int) -> list[Example]:
    """Some of each kind, the worst kinds first, so that many of one do not hide the others."""
    shown: list[Example] = []
    for kind in kinds:
        rows = found.filter(F.col("kind") == kind).orderBy("at", "gid", "message_id").limit(most).collect()
        shown += [_example(row) for row in rows]
    return shown


def _example(row: Row) -> Example:
    at = row["at"]
    fields: dict[str, Any] = {name: row[name] for name in Example.__struct_fields__ if name != "at_ms"}
    return Example(at_ms=None if at is None else round(at.timestamp() * 1000), **fields)


def _named(observed: dict[str, Any], groups: list[str]) -> dict[str, int]:
    """Counts by the names of the groups instead of their numbers."""
    words = {"inbox": "in the inbox of", "effect": "effects of", "due": "meant for", "payload": "values compared of"}
    named = {}
    for name, number in observed.items():
        kind, _, index = name.rpartition("_")
        shown = f"{words[kind]} {groups[int(index)]}" if kind in words and index.isdigit() else name.replace("_", " ")
        named[shown] = int(number or 0)
    return named


def _notes(settings: ReconcileSettings, read: Snapshots) -> list[str]:
    notes = []
    if settings.topics and settings.brokers:
        notes.append("not all topics were read, so that a transaction with messages missing in the log is not noticed")
    for database in [*read.producers, *read.consumers]:
        if abs(database.ahead_ms) > 2_000:
            notes.append(f"{database.named}: its clock is {database.ahead_ms / -1000:+.1f} s off; taken into account")
    return notes
