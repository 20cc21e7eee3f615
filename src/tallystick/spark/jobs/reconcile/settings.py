"""What a reconciliation compares."""

from __future__ import annotations

from msgspec import Struct, field

from tallystick.barrier.names import BARRIER_TABLE, DIGEST_TABLE, INBOX_TABLE, OFFSET_TABLE, OUTBOX_TABLE, checked_table
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.spark.jdbc import Database

DAY_MS = 86_400_000
MOST_CONSUMERS = 30  # each adds columns to every row


class Consumer(Struct, frozen=True, kw_only=True):
    """A consumer group that applies messages exactly once, and the database in which it does.

    `effects` is a query (or a table) with a column `message_id`, one row for each effect; without it the inbox alone
    tells what was applied. `topics` is left empty for those in which the broker has a place of the group. `tags` are
    those it subscribes to (empty: all). `since_ms` is when it began to read, if that was not at the beginning.
    """

    group: str
    database: str
    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    effects: str = ""
    since_ms: int | None = None
    inbox_table: str = INBOX_TABLE
    offset_table: str = OFFSET_TABLE
    digest_table: str = DIGEST_TABLE


class ReconcileSettings(Struct, frozen=True, kw_only=True):
    """Any of the three sides may be left out.

    `producer_groups` are those whose database is given (empty: all). Every message in one of the `transactional` topics
    must come from a transaction with a barrier row; elsewhere, one that was sent without is no ghost. Nothing
    younger than `grace_ms` is called lost or in doubt. What took longer than `late_after_ms` is late (None: never).
    With `digests` the values in the log are read and compared with the digests that consumers have kept.
    """

    brokers: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()
    consumers: tuple[Consumer, ...] = ()
    producer_groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    transactional: tuple[str, ...] = ()
    archive: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    grace_ms: int = 60_000
    late_after_ms: int | None = None
    dedup_retention_ms: int = 7 * DAY_MS  # only where there is no broker to ask
    consumer_dedup: bool = False
    digests: bool = False
    barrier_table: str = BARRIER_TABLE
    outbox_table: str = OUTBOX_TABLE
    output: str = ""
    examples: int = 10
    credentials: Credentials = field(default_factory=find_credentials)

    def check(self) -> None:
        """Refuse what cannot be compared, before anything is read."""
        sides = sum(map(bool, (self.brokers, self.producers, self.consumers)))
        if sides < 2:
            raise InvalidRequest(
                "there is nothing to compare: give at least two of the three sides (broker, producers, consumers)"
            )
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise InvalidRequest("since: the range is empty, it must begin before it ends", field="since")
        if len(self.consumers) > MOST_CONSUMERS:
            raise InvalidRequest(f"consumers: at most {MOST_CONSUMERS} at once", field="consumer")
        if self.digests and not (self.brokers and self.consumers):
            raise InvalidRequest(
                "digests: they are compared between a broker and consumers; give both", field="digests"
            )
        for table in (self.barrier_table, self.outbox_table):
            checked_table(table)
        self._check_consumers()
        self._check_addresses()
        self._check_output()

    def _check_consumers(self) -> None:
        for consumer in self.consumers:
            check_name(consumer.group, "consumer")
            checked_table(consumer.inbox_table)
            checked_table(consumer.offset_table)
            checked_table(consumer.digest_table)
        groups = [consumer.group for consumer in self.consumers]
        for group in groups:
            if groups.count(group) > 1:
                raise InvalidRequest(f"consumer: group {group!r} is given twice", field="consumer")

    def _check_addresses(self) -> None:
        for number, url in enumerate(self.producers, 1):
            Database.parse(url, f"producer {number}")
        for consumer in self.consumers:
            Database.parse(consumer.database, f"consumer {consumer.group}")

    def _check_output(self) -> None:
        if self.output and not self.output.endswith((".parquet", ".csv")):
            raise InvalidRequest(
                f"output: {self.output!r} must end in .parquet or .csv, which says how it is written", field="output"
            )
