"""What the job is told, and what it tells."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from tallystick.barrier.names import BARRIER_TABLE, checked_table
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name
from tallystick.core.ops import MOST_AT_ONCE
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.spark.jobs.checkback.producers import ProducerDatabase

State = Literal["pending", "prepared", "parked"]


class CheckbackSettings(Struct, frozen=True, kw_only=True):
    """Which transactions are decided, from which databases, and how.

    `groups` limits the job to these producer groups. `sourceless` also decides transactions that do not say which
    database holds their barrier row; that is the caller's word that it is the one given. `wait` is how long a batch
    waits for local transactions that are still running.
    """

    url: str
    databases: tuple[ProducerDatabase, ...]
    groups: tuple[str, ...] = ()
    sourceless: bool = False
    table: str = BARRIER_TABLE
    state: State = "pending"
    older_than_ms: int = 60_000
    wait: float = 1.0
    batch: int = 5_000
    connections: int = 16
    retry: float = 120.0
    dry_run: bool = False
    credentials: Credentials = field(default_factory=find_credentials)

    def check(self) -> None:
        """Refuse what could decide from the wrong database, or could not work, before anything is asked."""
        if not self.databases:
            raise InvalidRequest("--database: name at least one database to decide from", field="database")
        for group in self.groups:
            check_name(group, "group")
        checked_table(self.table)
        if not 1 <= self.batch <= MOST_AT_ONCE:
            raise InvalidRequest(f"batch: 1 to {MOST_AT_ONCE:,}, not {self.batch}", field="batch")
        if self.connections < 1:
            raise InvalidRequest("--connections: at least 1", field="connections")
        if self.sourceless and (len(self.databases) != 1 or not self.groups):
            raise InvalidRequest(
                "--sourceless: only with one --database and with --group, for these transactions do not say which "
                "database is theirs",
                field="sourceless",
            )


class Decided(Struct, frozen=True):
    """How many transactions of a database came to an outcome.

    `outcome` may also be `unknown` (the local transaction is running: left alone) and, in a dry run, `open`.
    """

    database: str
    outcome: str
    count: int


class Foreign(Struct, frozen=True):
    """Transactions that were left alone because they name a database that was not given."""

    source: str
    check: str
    count: int


class CheckbackSummary(Struct):
    """What a run has seen and done. In a dry run: what it would have done. `hidden`: which transactions the token may
    not read, and the run left alone; empty if it may read all."""

    pending: int = 0
    not_due: int = 0
    foreign: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    open: int = 0
    decided: list[Decided] = []
    foreign_sources: list[Foreign] = []
    seconds: float = 0.0
    dry_run: bool = False
    hidden: str = ""

    @property
    def rate(self) -> float:
        """Outcomes a second."""
        return (self.committed + self.rolled_back) / self.seconds if self.seconds else 0.0

    def add(self, decided: Decided) -> None:
        self.decided.append(decided)
        setattr(self, decided.outcome, getattr(self, decided.outcome) + decided.count)
