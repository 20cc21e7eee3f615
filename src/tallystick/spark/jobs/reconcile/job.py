"""The job: read the sides, compare them, say what is wrong; and how far back each side can be compared.

Old rows go by right: barrier and inbox rows by the services' own clean-up, transactions when the broker forgets them,
messages by retention. Before that, a missing row says nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F

from tallystick.spark.archive.layout import Archive
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.jobs.reconcile import brokers
from tallystick.spark.jobs.reconcile.brokers import PinnedLog, stores_at
from tallystick.spark.jobs.reconcile.comparison import compare, counts, empty_traces, findings
from tallystick.spark.jobs.reconcile.databases import ServiceDatabase
from tallystick.spark.jobs.reconcile.rules import BEGINNING, END, MARGIN_MS, Bounds
from tallystick.spark.jobs.reconcile.settings import Consumer, ReconcileSettings
from tallystick.spark.jobs.reconcile.snapshots import SnapshotReader, Snapshots
from tallystick.spark.jobs.reconcile.summary import KINDS, Example, Reach, ReconcileSummary
from tallystick.spark.tasks import Report, quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS_PER_PARTITION = 250_000  # what a task adds up within some hundred megabytes
MOST_PARTITIONS = 2_000


def run_reconcile(spark: SparkSession, settings: ReconcileSettings, report: Report = quiet) -> ReconcileSummary:
    """Compare all sides that are given; see `ReconcileSummary.verdict`."""
    settings.check()
    check_command_lines(settings.credentials)
    brokers.require_permissions(settings)
    began = time.monotonic()
    settings = msgspec.structs.replace(settings, brokers=stores_at(settings.brokers, settings.credentials))
    read = SnapshotReader(spark, settings, report).read()
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


# --- how far back each side can be compared ---------------------------------------------------------------------


class Measured(Struct, frozen=True):
    bounds: Bounds
    reach: tuple[Reach, ...]


def measure(settings: ReconcileSettings, read: Snapshots) -> Measured:
    """Asked after everything was read: what was cleaned up meanwhile is then not taken for missing."""
    retentions = [broker.dedup_retention_ms for broker in read.pinned] or [settings.dedup_retention_ms]
    # The services' clean-up keeps rows for as long as any of their brokers remembers gids.
    cleaned = read.now_ms - min(retentions)
    remembered = max([broker.at_ms - broker.dedup_retention_ms for broker in read.pinned], default=BEGINNING)
    log = max([_log_from(broker, settings.archive) for broker in read.pinned], default=BEGINNING)
    barrier = max([_rows_from(_oldest_outcome(settings, one), cleaned) for one in read.producers], default=BEGINNING)
    applied = [_applied_from(settings, read, number, cleaned) for number in range(len(settings.consumers))]
    bounds = Bounds(
        now_ms=read.now_ms,
        grace_ms=settings.grace_ms,
        since_ms=BEGINNING if settings.since_ms is None else settings.since_ms,
        until_ms=END if settings.until_ms is None else settings.until_ms,
        late_after_ms=settings.late_after_ms,
        remembered_from=remembered + MARGIN_MS if read.pinned else BEGINNING,
        log_from=log,
        barrier_from=barrier,
        applied_from=tuple(applied),
        whole_log=not settings.topics,
        brokers=bool(settings.brokers),
        producers=bool(settings.producers),
        digests=settings.digests,
        effects=tuple(bool(consumer.effects) for consumer in settings.consumers),
        keeps_offset=tuple(one.keeps_offset for one in read.places.consuming),
    )
    return Measured(bounds, tuple(_told(bounds, settings.consumers)))


def _rows_from(oldest: int | None, cleaned: int) -> int:
    """Nothing younger than `cleaned` is ever cleaned up; and nothing younger than a row that is still there was."""
    return cleaned if oldest is None else min(oldest, cleaned)


def _oldest_outcome(settings: ReconcileSettings, database: ServiceDatabase) -> int | None:
    return database.oldest(settings.barrier_table, "create_time", database.barrier_ahead_ms)


def _applied_from(settings: ReconcileSettings, read: Snapshots, number: int, cleaned: int) -> int:
    consumer, database = settings.consumers[number], read.consumers[number]
    began = BEGINNING if consumer.since_ms is None else consumer.since_ms
    if read.places.consuming[number].keeps_offset and not consumer.effects:
        return began
    mine = f"consumer_group = '{consumer.group}'"
    oldest = database.oldest(consumer.inbox_table, "created_at", database.ahead_ms, mine)
    return max(began, _rows_from(oldest, cleaned))


def _log_from(broker: PinnedLog, archive: str) -> int:
    """The latest moment at which a message can have been stored that was in a queue and is there no longer."""
    found = [BEGINNING]
    kept = Archive(archive) if archive else None
    for view in broker.live:
        covered = kept.covers(view.name) if kept is not None else {}
        for queue in range(view.queues):
            start = min(view.starts[queue], covered.get(queue, (view.starts[queue], 0))[0])
            if start <= view.begin(queue):
                continue
            oldest = brokers.oldest_kept(broker, view, queue)
            # An empty queue shows nothing; retention has taken no message that is younger than that.
            found.append(broker.at_ms - view.retention_ms if oldest is None else oldest + 1)
    return max(found)


def _told(bounds: Bounds, consumers: tuple[Consumer, ...]) -> list[Reach]:
    told = []
    if bounds.producers:
        told.append(_reach("barrier rows", bounds.barrier_from, "older rows may have been cleaned up"))
    if bounds.brokers:
        told.append(_reach("transactions", bounds.remembered_from, "the broker forgets older ones"))
        told.append(_reach("log", bounds.log_from, "older messages are gone by retention"))
    for consumer, since in zip(consumers, bounds.applied_from, strict=True):
        told.append(_reach(f"inbox of {consumer.group}", since, "older rows may have been cleaned up"))
    return told


def _reach(side: str, since: int, why: str) -> Reach:
    whole = since <= BEGINNING
    return Reach(side=side, since_ms=None if whole else since, why="" if whole else why)
