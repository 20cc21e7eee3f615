"""Reading the sides while the system runs, in an order that gives no false alarm.

A transaction passes these points, in this order: prepared at the broker; committed in the producer's database (with
its barrier row); committed at the broker, which makes its messages visible; applied in a consumer's database;
settled at the broker. We take the snapshots in the opposite order:

    places of the groups -> inboxes and effects -> outboxes, delayed messages -> log -> transactions -> barrier rows

So whatever a snapshot shows, the points before it were passed before, and the snapshots that follow show them:

* an effect that we saw has its message in the log that we read after it, or it is a ghost;
* a message that we saw has a transaction that was committed by the time we read those; and that one has a barrier
  row by the time we read those. A barrier row never changes, so a contradiction is one at any moment;
* a message before a group's place was settled, hence applied, before we read the inbox: if it is not there it is
  lost, and not merely late;
* an inbox row is written together with its effect, and is read before it;
* an outbox row goes only after its messages are at the broker, and a delayed message is kept aside until it is in its
  queue: both are read before the place where they appear next, so they are seen in at least one of the two.

In the other direction a point that was not passed yet is no damage: only what had passed the point before it at least a
grace before the first snapshot is called lost (`rules.old_enough`).

This needs snapshots that stay what they are. Spark reads when it computes, and reads again when it computes again; so
each side is kept on disk (`localCheckpoint`) before the next one is read, and is never read twice: if such a
piece is lost with its executor the job fails, which is better than to compare with what was read too late.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F

from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import TopicView
from tallystick.spark.format import FORMAT
from tallystick.spark.jobs.reconcile import brokers, traces
from tallystick.spark.jobs.reconcile.brokers import Consuming, PinnedLog, Places
from tallystick.spark.jobs.reconcile.databases import ServiceDatabase
from tallystick.spark.jobs.reconcile.rules import MARGIN_MS
from tallystick.spark.jobs.reconcile.settings import Consumer, ReconcileSettings
from tallystick.spark.options import credential_options
from tallystick.spark.tasks import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = (
    "topic string not null, queue int not null, offset bigint not null, {0} gid string, sequence int not null, "
    "timestamp timestamp not null, born_at timestamp not null"
)
_LETTERS = "headers map<string,string>, gid string, sequence int not null"
_TRANSACTIONS = (
    "gid string not null, state string not null, group string, messages int not null, created_at timestamp not null, "
    "resolved_at timestamp, resolved_by string"
)
_DELAYED = "gid string not null, sequence int not null"


class Snapshots(Struct):
    """What was read. `now_ms` is when reading began, on the broker's clock."""

    now_ms: int
    traces: list[DataFrame]
    rows: int
    pinned: list[PinnedLog]
    places: Places
    producers: list[ServiceDatabase]
    consumers: list[ServiceDatabase]


class SnapshotReader:
    """Reads all sides of one reconciliation, once."""

    def __init__(self, spark: SparkSession, settings: ReconcileSettings, report: Report) -> None:
        self._spark, self._settings, self._report = spark, settings, report
        self._traces: list[DataFrame] = []
        self._rows = 0
        self._signed: list[Observation] = []
        since = settings.since_ms
        # All that a transaction leaves behind comes after its beginning; the margin is for clocks.
        self._from = None if since is None else since - MARGIN_MS

    def read(self) -> Snapshots:
        settings = self._settings
        ahead = self._clock()
        now = round(time.time() * 1000) + ahead
        producers = [
            self._open(url, f"producer {number}", ahead, settings.barrier_table)
            for number, url in enumerate(settings.producers, 1)
        ]
        consumers = [
            self._open(one.database, f"consumer {one.group}", ahead, one.inbox_table) for one in settings.consumers
        ]
        pairs = list(zip(settings.consumers, consumers, strict=True))
        consuming = [self._consuming(*pair) for pair in pairs]
        self._keep("inboxes", [self._inbox(number, *pair) for number, pair in enumerate(pairs)])
        if settings.digests:
            self._keep("digests", [self._digests(number, *pair) for number, pair in enumerate(pairs)])
        self._keep("effects", [self._effects(number, *pair) for number, pair in enumerate(pairs) if pair[0].effects])
        # Mostly empty, and a look costs less than a job that finds nothing.
        self._keep("outboxes", [self._outbox(one) for one in producers if one.has_rows(settings.outbox_table)])
        shown = settings.credentials
        delayed = [url for url in settings.brokers if brokers.has_delayed(url, shown)]
        self._keep("delayed messages", [self._delayed(url) for url in delayed])
        pinned = [brokers.pin(url, settings.topics, shown) for url in settings.brokers]
        brokers.require_topics(settings.topics, pinned)
        places = Places(pinned, consuming, settings)
        self._keep("log", [rows for broker in pinned for rows in self._log(broker, places)])
        self._keep("transactions", [self._transactions(broker) for broker in pinned])
        self._refuse_signed()
        self._keep("barrier rows", [self._outcomes(one) for one in producers])
        return Snapshots(now, self._traces, self._rows, pinned, places, producers, consumers)

    def _clock(self) -> int:
        """By how much the broker's clock is ahead of ours. Of several, the one that is least ahead: what it would call
        young, the others do as well."""
        settings = self._settings
        told = [brokers.info(url, settings.credentials).now_ms - round(time.time() * 1000) for url in settings.brokers]
        return min(told, default=0)

    def _open(self, url: str, named: str, ahead: int, table: str) -> ServiceDatabase:
        database = ServiceDatabase(url, named)
        database.require_table(table)
        database.set_clock(ahead)
        return database

    def _keep(self, side: str, parts: list[DataFrame]) -> None:
        """Read now, and keep what was read."""
        if not parts:
            return
        self._report(f"reading {side}")
        together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
        seen = Observation()
        counted = together.observe(seen, F.count(F.lit(1)).alias("rows"))
        self._traces.append(counted.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY))
        self._rows += int(seen.get["rows"])

    # --- consumers -------------------------------------------------------------------------------------------

    def _consuming(self, consumer: Consumer, database: ServiceDatabase) -> Consuming:
        """How far a group is, before anything of it is read."""
        if consumer.effects:
            database.check_effects(consumer.effects)
        own = database.offsets(consumer.offset_table, consumer.group)
        settings = self._settings
        known = {url: brokers.progress(url, consumer.group, settings.credentials) for url in settings.brokers}
        nothing = self._settings.brokers and not own and not any(known.values())
        if nothing and not consumer.topics:
            raise InvalidRequest(
                f"consumer: no broker knows the group {consumer.group!r}; if the name is right and the group has not "
                "begun to read, say which topics it is to read",
                field="consumer",
            )
        return Consuming(consumer, own, known)

    def _inbox(self, number: int, consumer: Consumer, database: ServiceDatabase) -> DataFrame:
        inbox = database.inbox(self._spark, consumer.inbox_table, consumer.group, self._from)
        return traces.inbox_traces(inbox, number, database.ahead_ms)

    def _digests(self, number: int, consumer: Consumer, database: ServiceDatabase) -> DataFrame:
        database.require_table(consumer.digest_table)
        digests = database.digests(self._spark, consumer.digest_table, consumer.group, self._from)
        return traces.digest_traces(digests, number)

    def _effects(self, number: int, consumer: Consumer, database: ServiceDatabase) -> DataFrame:
        return traces.effect_traces(database.effects(self._spark, consumer.effects), number)

    # --- producers -------------------------------------------------------------------------------------------

    def _outbox(self, database: ServiceDatabase) -> DataFrame:
        return traces.outbox_traces(database.unsent(self._spark, self._settings.outbox_table), database.ahead_ms)

    def _outcomes(self, database: ServiceDatabase) -> DataFrame:
        outcomes = database.outcomes(self._spark, self._settings.barrier_table, self._from)
        return traces.producer_traces(outcomes, database.barrier_ahead_ms)

    # --- brokers ---------------------------------------------------------------------------------------------

    def _load(self, url: str, schema: str, **options: str) -> DataFrame:
        shown = credential_options(self._settings.credentials)
        return self._spark.read.format(FORMAT).schema(schema).options(url=url, **shown, **options).load()

    def _log(self, broker: PinnedLog, places: Places) -> Iterator[DataFrame]:
        """The topics, and the dead-letter topics of the groups."""
        settings = self._settings
        topics = [view for view in broker.live if any(view.ends)]
        if topics:
            more = "tag string," + (" headers map<string,string>," if settings.consumer_dedup else "")
            more += " value binary not null," if settings.digests else ""
            log = self._load(broker.url, _LOG.format(more), **self._range(topics))
            known = places.frame(self._spark, broker.store)
            groups = len(settings.consumers)
            yield traces.log_traces(log, known, broker.store, groups, settings.consumer_dedup)
        for number, consumer in enumerate(settings.consumers):
            for view in broker.dead(consumer.group):
                letters = self._load(broker.url, _LETTERS, includeHeaders="true", **self._range([view]))
                yield traces.dead_letter_traces(letters, broker.store, number)

    def _range(self, topics: list[TopicView]) -> dict[str, str]:
        """What was there when the ends were taken. What retention removes meanwhile is left out of the comparison."""
        ends = {view.name: {str(queue): end for queue, end in enumerate(view.ends)} for view in topics}
        start = {"startingOffsets": "earliest"} if self._from is None else {"startingTimestamp": str(self._from)}
        archive = {"archive": self._settings.archive} if self._settings.archive else {}
        chosen = {"subscribe": ",".join(ends), "endingOffsets": json.dumps(ends), "failOnDataLoss": "false"}
        return {**chosen, **start, **archive}

    def _delayed(self, url: str) -> DataFrame:
        return traces.delayed_traces(self._load(url, _DELAYED, table="delayed"))

    def _transactions(self, broker: PinnedLog) -> DataFrame:
        table = self._load(broker.url, _TRANSACTIONS, table="transactions")
        signed = (F.col("resolved_by") == "sender") & F.col("gid").endswith(":commit")
        self._signed.append(Observation())
        observed = table.observe(self._signed[-1], F.count(F.when(signed, 1)).alias("signed"))
        return traces.transaction_traces(observed, self._settings.producer_groups, self._settings.consumer_dedup)

    def _refuse_signed(self) -> None:
        """Messages of the consumer-dedup mode are told apart by headers, which are not read unless it is said."""
        if not self._settings.consumer_dedup and any(seen.get["signed"] for seen in self._signed):
            raise InvalidRequest(
                "consumer_dedup: there are messages of producers in consumer-dedup mode, which are told apart by their "
                "headers; say so (--consumer-dedup), and the headers are read as well",
                field="consumer_dedup",
            )
