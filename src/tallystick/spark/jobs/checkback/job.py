"""The job: reads what is pending, joins, lets tasks decide, and adds up what came of it.

Everything that a task does may happen twice, or half: an outcome is told only after it is durable in the producer's
database, and telling it again changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.barrier import BarrierError, adapt_sync, decide_many, known_outcomes, run_sync
from tallystick.barrier.queries import OUTCOMES
from tallystick.core.errors import TallystickError
from tallystick.core.ops import Outcome
from tallystick.link import Link
from tallystick.spark.jdbc import Database
from tallystick.spark.jobs.checkback.producers import KnownDatabase, check_apart, look_at, owner_column
from tallystick.spark.jobs.checkback.settings import CheckbackSettings, CheckbackSummary, Decided, Foreign
from tallystick.spark.tasks import Report, parts_reported, quiet, told_by_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The barrier table is read as a whole only while it is not so much larger that asking for each gid is cheaper.
_SCAN_AT_MOST = 20
_GIDS_PER_TASK = 25_000
_FOREIGN_SHOWN = 20
_NEEDED = ("gid", "state", "group", "checks", "next_check_at", "check_via", "check_target", "source")
COUNTED = "way string, outcome string, count bigint"
_BROKER_TIMEOUT = 60.0
# A database may be restarted while a job of some minutes runs.
_TRIES = 4
_PAUSE_SECONDS = 1.0


def run_checkback(spark: SparkSession, settings: CheckbackSettings, report: Report = quiet) -> CheckbackSummary:
    """Decide what is pending and can be decided from the given databases; safe to repeat, and to run twice at once."""
    began = time.monotonic()
    settings.check()
    databases = [look_at(given, settings.table) for given in settings.databases]
    check_apart(databases, settings.groups)
    summary = CheckbackSummary(dry_run=settings.dry_run)
    with told_by_tasks():
        pending = _pending(spark, databases, settings).persist()
        try:
            report("reading what is pending")
            counts = _count(pending, summary)
            for number, known in enumerate(databases):
                if counts[number]:
                    report(f"{counts[number]:,} transactions of {known.shown}")
                    mine = pending.filter(f"owner = {number} and due").select("gid")
                    for decided in _decide(spark, known, mine, counts[number], settings, report):
                        summary.add(decided)
        finally:
            pending.unpersist()
    summary.seconds = round(time.monotonic() - began, 3)
    return summary


def _pending(spark: SparkSession, databases: Sequence[KnownDatabase], settings: CheckbackSettings) -> DataFrame:
    from pyspark.sql import functions as sql

    with Link(settings.url, patience=settings.retry) as link:
        now_ms = int(link.get("info")["now_ms"])
    # A producer may ask for more time than others before the first check: its transaction may take that long.
    waits = (sql.col("checks") == 0) & (sql.unix_millis("next_check_at") > now_ms)
    due = (sql.col("state") == "parked") | ~sql.coalesce(waits, sql.lit(False))
    shown = ["gid", "source", "check_via", "check_target"]
    found = _read(spark, settings).select(
        *shown, due.alias("due"), owner_column(databases, settings.sourceless).alias("owner")
    )
    return found.dropDuplicates(["gid"])  # one that is checked while it is read may be met twice


def _read(spark: SparkSession, settings: CheckbackSettings) -> DataFrame:
    from pyspark.sql.types import StructType

    from tallystick.spark.tables import columns_of

    columns = columns_of("transactions")
    reader = spark.read.format("tallystick").option("url", settings.url).option("table", "transactions")
    reader = reader.option("state", settings.state).option("olderThan", f"{settings.older_than_ms}ms")
    reader = reader.schema(StructType([columns[name] for name in _NEEDED]))
    reader = reader.option("retryTimeout", f"{settings.retry}s")
    reader = reader.option("minPartitions", max(8, 2 * spark.sparkContext.defaultParallelism))
    if len(settings.groups) == 1:
        return reader.option("group", settings.groups[0]).load()
    whole = reader.load()
    return whole.filter(whole["group"].isin(*settings.groups)) if settings.groups else whole


def _count(pending: DataFrame, summary: CheckbackSummary) -> Counter[int]:
    from pyspark.sql import functions as sql

    counts: Counter[int] = Counter()
    for owner, due, count in pending.groupBy("owner", "due").count().collect():
        summary.pending += count
        if owner is None:
            summary.foreign += count
        elif due:
            counts[owner] += count
        else:
            summary.not_due += count
    if summary.foreign:
        foreign = pending.filter("owner is null").groupBy("source", "check_via", "check_target").count()
        for source, via, target, count in foreign.orderBy(sql.desc("count")).limit(_FOREIGN_SHOWN).collect():
            summary.foreign_sources.append(Foreign(source or "", ":".join(filter(None, (via, target))), count))
    return counts


def _decide(
    spark: SparkSession,
    known: KnownDatabase,
    gids: DataFrame,
    count: int,
    settings: CheckbackSettings,
    report: Report,
) -> list[Decided]:
    from pyspark.sql import functions as sql

    rows = _barrier_rows(spark, known, count, settings)
    no_row = sql.lit(None).cast("string").alias("reason")
    joined = gids.select("gid", no_row) if rows is None else gids.join(rows, "gid", "left").select("gid", "reason")
    decider = BulkDecider(
        url=settings.url,
        database=known.database,
        table=settings.table,
        wait=settings.wait,
        batch=settings.batch,
        retry=settings.retry,
        dry_run=settings.dry_run,
    )
    # In order of gid: both the database and the broker then find what they look for side by side, not all over
    # their disks. Of gids in random order the broker's cache is of no use, and an answer takes twenty times as long.
    shared = joined.repartitionByRange(_tasks(spark, known, count, settings), "gid").sortWithinPartitions("gid")
    with parts_reported(spark, report, f"deciding {count:,} transactions of {known.shown}"):
        found = shared.mapInArrow(decider.run, COUNTED).collect()
    total: Counter[tuple[str, str]] = Counter()
    for way, outcome, number in found:
        total[way, outcome] += number
    return [Decided(known.shown, way, outcome, number) for (way, outcome), number in sorted(total.items())]


def _barrier_rows(
    spark: SparkSession, known: KnownDatabase, count: int, settings: CheckbackSettings
) -> DataFrame | None:
    """The outcomes that the database has by now; None where it is cheaper to ask for the gids alone."""
    if count < settings.scan_from:
        return None
    low, high = known.database.bounds(settings.table, "id")
    if high - low >= max(count, 1) * _SCAN_AT_MOST:
        return None
    rows = known.database.read(spark, settings.table, partition_by="id")
    reasons = ", ".join(f"'{reason}'" for reason in OUTCOMES)
    wanted = f"branch_id = '00' and op = 'msg' and barrier_id = '01' and reason in ({reasons})"
    return rows.filter(wanted).select("gid", "reason")


def _tasks(spark: SparkSession, known: KnownDatabase, count: int, settings: CheckbackSettings) -> int:
    """How many pieces: small ones, so that progress shows; but never more at a time than the database is to bear."""
    if known.database.address.engine == "sqlite":
        return 1  # it has one writer
    pieces = -(-count // _GIDS_PER_TASK)
    return (
        pieces if spark.sparkContext.defaultParallelism <= settings.connections else min(pieces, settings.connections)
    )


# --- what a task does: it finds the outcomes of its share of the transactions and tells the broker --------------


@dataclass(frozen=True)
class BulkDecider:
    """For one database. It travels to the executors."""

    url: str
    database: Database
    table: str
    wait: float
    batch: int
    retry: float
    dry_run: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From rows of (gid, reason) to counts of (way, outcome)."""
        import pyarrow as pa

        with Link(self.url, timeout=_BROKER_TIMEOUT, patience=self.retry) as broker:
            for batch in batches:
                for start in range(0, batch.num_rows, self.batch):
                    counts = self._decide(broker, batch.slice(start, self.batch))
                    ways, outcomes = zip(*counts, strict=True)
                    numbers = pa.array(counts.values(), pa.int64())
                    yield pa.record_batch([ways, outcomes, numbers], ["way", "outcome", "count"])

    def _decide(self, broker: Link, rows: pa.RecordBatch) -> Counter[tuple[str, str]]:
        reasons = zip(rows.column("gid").to_pylist(), rows.column("reason").to_pylist(), strict=True)
        joined: dict[str, Outcome] = {}
        asked: list[str] = []
        for gid, reason in reasons:
            if reason in OUTCOMES:
                joined[gid] = OUTCOMES[reason]
            else:
                asked.append(gid)
        checked = self._ask_patiently(asked) if asked else {}
        outcomes = {**joined, **{gid: said for gid, said in checked.items() if said in OUTCOMES.values()}}
        if outcomes and not self.dry_run:
            # Those that are unknown are left out: to say so would count as a check, and might park them.
            broker.post("checks", "answers", answers=outcomes)
        counts: Counter[tuple[str, str]] = Counter(("join", said) for said in joined.values())
        counts.update(("check", said) for said in checked.values())
        return counts

    def _ask_patiently(self, gids: list[str]) -> dict[str, str]:
        tries = 0
        while True:
            try:
                return self._ask(gids)
            except BarrierError:
                raise
            except Exception as error:
                tries += 1
                if tries == _TRIES:
                    said = " ".join(str(error).split()) or type(error).__name__
                    raise TallystickError(f"{self.database.named}: {said}") from error
            time.sleep(_PAUSE_SECONDS * tries)

    def _ask(self, gids: list[str]) -> dict[str, str]:
        connection: Any = self.database.connect(self.wait)
        try:
            adapter = adapt_sync(connection)
            if self.dry_run:
                known = run_sync(adapter, known_outcomes(gids, table=self.table))
                return {gid: known.get(gid, "open") for gid in gids}
            decided = run_sync(adapter, decide_many(gids, wait=self.wait, table=self.table))
        finally:
            connection.close()
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}
