"""What a broker asks of a store. Batch first: one `write` is one atomic, durable unit.

The protocol is written for engines that several brokers share: claims are leases, the store assigns offsets,
time is an argument, and nothing is held between two calls. An answer of `write` means: durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallResult, CallsView, CallTopicView, CallView, OutgoingCall
from tallystick.core.durations import DAY_MS
from tallystick.core.limits import Limits
from tallystick.core.message import Slice, Welcome
from tallystick.core.ops import ClientOp, OpResult, PrepareColumns
from tallystick.core.token_records import TokenRecord as TokenRecord  # part of what is said here
from tallystick.core.transaction import CheckDefaults
from tallystick.core.wire import (
    AuditLine,
    CheckRequest,
    Delivery,
    GroupView,
    LedgerView,
    Split,
    TableName,
    TopicView,
    TransactionView,
)

STILL_UNKNOWN = "the producer could not tell the outcome yet"


class StoreSettings(Struct, frozen=True):
    """The rules a store applies where a request does not say."""

    checks: CheckDefaults = CheckDefaults()
    limits: Limits = Limits()
    auto_create_topics: bool = True
    default_queues: int = 4
    retention_ms: int = 7 * DAY_MS
    dedup_retention_ms: int = 7 * DAY_MS
    part_ttl_ms: int = DAY_MS
    audit_retention_ms: int = 90 * DAY_MS
    max_attempts: int = 16
    redelivery: Backoff = Backoff(first_ms=1_000, cap_ms=300_000)
    max_leased: int = 10_000
    calls: Backoff = Backoff(first_ms=1_000, cap_ms=300_000)
    max_call_attempts: int = 1_000
    call_alert_after: int = 3


# --- operations that only a broker makes -----------------------------------------------------------------------


class PutTopic(Struct):
    name: str
    queues: int | None = None
    retention_ms: int | None = None


class DeleteTopic(Struct):
    name: str


class ClaimChecks(Struct):
    """Take the transactions of these channels that are due; each stays with the claimer until `lease_ms` pass."""

    channels: list[int]
    limit: int
    lease_ms: int


class FailChecks(Struct):
    """Checks that brought no outcome. `counted=False`: no check was made. `retry_ms` replaces the wait that the
    broker would choose."""

    errors: dict[str, str]
    permanent: bool = False
    counted: bool = True
    retry_ms: int | None = None


class ParkOld(Struct):
    """Park what is older than the maximum age in channels where nobody can be asked."""

    channels: list[int]
    limit: int


class Resume(Struct):
    """Check a parked transaction again, from the beginning of its limits."""

    gid: str


class OperatorResolve(Struct):
    """An operator's word on a transaction."""

    gid: str
    outcome: Literal["committed", "rolled_back"]


class Receive(Struct):
    group: str
    topic: str
    max: int
    invisible_ms: int
    ordered: bool = False
    start: Literal["earliest", "latest"] = "earliest"
    tags: list[str] | None = None


class ResetGroup(Struct):
    """Move a consumer group to another place of a topic: to its beginning or end, to offsets of some queues, or to
    what was stored at a time (milliseconds since the epoch) or later. Exactly one of these is given."""

    group: str
    topic: str
    to: Literal["earliest", "latest"] | None = None
    offsets: dict[int, int] | None = None
    timestamp: int | None = None


class PromoteDelayed(Struct):
    limit: int


class ExpireParts(Struct):
    limit: int


class ExpireTombstones(Struct):
    limit: int


class TrimTopics(Struct):
    """Remove chunks that are older than their topic's retention."""

    limit: int


class TrimTo(Struct):
    """Remove what lies before these offsets, by queue."""

    topic: str
    offsets: dict[int, int]
    limit: int


class ForgetApp(Struct):
    """Take an application out of the ledger: its batches may be numbered from the beginning again."""

    app: str


class ClaimCalls(Struct):
    """Take calls of these channels that are due; each stays with the claimer until `lease_ms` pass. `early` takes
    those as well that wait only because their host could not be reached."""

    channels: list[int]
    limit: int
    max_bytes: int
    lease_ms: int
    early: bool = False


class FinishCalls(Struct):
    """What came of calls that were claimed."""

    results: list[CallResult]


class RequeueCalls(Struct):
    """Put calls that were claimed back in line: those whose lease is over or, when nobody else can hold any, all."""

    limit: int
    all: bool = False


class ResumeCalls(Struct):
    """Make the parked calls of a transaction again, from the beginning of their limits."""

    gid: str


class StopCalls(Struct):
    """End the calls of a transaction: what is not done is not made any more."""

    gid: str


class Hurry(Struct):
    """A transaction's next check, or the next tries of its calls, are due now."""

    gid: str


class HurryAll(Struct):
    """The same for every one whose next check or try is more than `after_ms` away, `limit` of them at most."""

    after_ms: int
    limit: int


class Subscribe(Struct):
    """Add a URL to a call topic, which is made if there is none."""

    topic: str
    url: str
    remark: str = ""


class Unsubscribe(Struct):
    topic: str
    url: str


class DropCallTopic(Struct):
    topic: str


class PutToken(Struct):
    """Keep a token. One of that name and id is there already: nothing changes; of another id: refused."""

    record: TokenRecord


class DropToken(Struct):
    """Revoke a token; with an id, only if it is the one of that id that has the name."""

    name: str
    id: str = ""


class ExpireAudit(Struct):
    """Forget lines of the audit log that are older than its retention."""

    limit: int


BrokerOp = (
    PutTopic
    | DeleteTopic
    | ClaimChecks
    | FailChecks
    | ParkOld
    | Resume
    | OperatorResolve
    | Receive
    | ResetGroup
    | PromoteDelayed
    | ExpireParts
    | ExpireTombstones
    | TrimTopics
    | TrimTo
    | ForgetApp
    | ClaimCalls
    | FinishCalls
    | RequeueCalls
    | ResumeCalls
    | StopCalls
    | Hurry
    | HurryAll
    | Subscribe
    | Unsubscribe
    | DropCallTopic
    | PutToken
    | DropToken
    | ExpireAudit
)


class Guarded(Struct):
    """An operation on a transaction for somebody who may touch those of some producer groups only, by patterns. On one
    of another group it is refused; one that is not known belongs to nobody yet. Parts belong to nobody, but each topic
    that they hold messages for must be one that somebody may produce to: `produces` has pairs of groups and topics, by
    patterns, one of which covers the topic together with the transaction's group. None: to all that groups cover."""

    op: ClientOp | PrepareColumns | BrokerOp | Guarded
    groups: tuple[str, ...]
    produces: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] | None = None


class Audited(Struct):
    """An operation that is written down in the audit log, in the same unit, unless it is refused: `who` did it (a name,
    and how it is known), from where, what was done (a word such as `resolve`) and to what."""

    op: BrokerOp | Guarded
    who: str
    kind: str
    source: str
    action: str
    subject: str


StoreOp = ClientOp | PrepareColumns | BrokerOp | Guarded | Audited


def unwrapped(op: StoreOp) -> ClientOp | PrepareColumns | BrokerOp:
    """The operation itself, without what is said of who asks for it."""
    while isinstance(op, Guarded | Audited):
        op = op.op
    return op


# --- what comes back -------------------------------------------------------------------------------------------


class Claim(Struct):
    """A transaction claimed for a check."""

    channel: int
    via: str
    target: str
    group: str
    member: str
    request: CheckRequest
    headers: dict[str, str] | None = None
    timeout_ms: int | None = None
    dtm: bool = False  # it came through dtm's interfaces
    retry_ms: int | None = None  # the wait after `unknown`, where the transaction has one


class Claimed(Struct):
    claims: list[Claim]
    next_due: dict[int, int | None]  # per channel, the first time at which more is due


class CallClaim(Struct, gc=False):
    """A call claimed to be made; `dtm` where it came through dtm's interfaces. `retry_ms`: its first wait."""

    channel: int
    gid: str
    index: int
    call: OutgoingCall
    attempts: int
    created_at: int
    dtm: bool = False
    retry_ms: int = 0


class ClaimedCalls(Struct):
    claims: list[CallClaim]
    next_due: dict[int, int | None]


class Received(Struct):
    deliveries: list[Delivery]
    next_visible: int | None = None


class FailedCall(Struct):
    """What an event says of the call that it is about."""

    url: str
    error: str
    failures: int


class Event(Struct):
    """Something an operator may want to hear of; `kind` is one word, such as parked or call_failing. `gid` is the
    transaction that it concerns, if it concerns one."""

    kind: str
    subject: str
    detail: str = ""
    gid: str = ""
    call: FailedCall | None = None


class Progress(Struct):
    """How far a sweep came; `next_at` tells when it is worth calling again, `more` that it stopped at its limit."""

    done: int
    more: bool = False
    next_at: int | None = None


class Channel(Struct, frozen=True):
    """A place that checks or calls go to: a producer group, a host, or a database. One cannot hold up another."""

    id: int
    via: str
    name: str


class TableQuery(Struct, frozen=True):
    """A page of one of the store's own tables. `after` and `before` are tokens of earlier answers."""

    table: TableName
    limit: int
    after: str | None = None
    before: str | None = None
    state: str | None = None
    group: str | None = None
    created_before: int | None = None


class AuditQuery(Struct, frozen=True):
    """Lines of the audit log, the newest first. `after` is a token of an earlier answer; `since` a time."""

    limit: int
    after: str | None = None
    who: str | None = None
    action: str | None = None
    since: int | None = None


class TablePage(Struct):
    """Rows, column by column, and where the next page begins."""

    columns: dict[str, list[Any]]
    next: str | None


class Counts(Struct):
    pending: int
    parked: int
    parts: int
    leased: int
    oldest_pending_at: int | None
    calls_waiting: int = 0
    calls_parked: int = 0


Result = OpResult | Claimed | ClaimedCalls | Received | Progress | TopicView | None


class MadeTopic(Struct):
    """A topic that nobody had asked to be made: it came with a message, or with somebody who waits for one."""

    name: str
    queues: int
    by: str


class Written(Struct):
    """What one unit has made, to be told now that it is durable."""

    results: list[Result]  # one for each operation
    appended: set[tuple[str, int]]  # queues that have had messages
    called: set[int]  # channels in which calls have come in line
    events: list[Event]
    counted: Counter[str]  # prepared, committed, rolled_back, and the events by kind
    made: list[MadeTopic] = []


# --- the store -------------------------------------------------------------------------------------------------


class LogViews(Protocol):
    """Topics and their queues. Asked from any thread, shows what is durable and nothing else."""

    def read(
        self, topic: str, queue: int, offset: int, max_messages: int, max_bytes: int, columns: Welcome = "none"
    ) -> Slice: ...

    def offsets_at(self, topic: str, timestamp: int) -> list[int]:
        """Of each queue, the first offset that was stored at or after a time; its end if there is none."""

    def topics(self) -> list[TopicView]: ...

    def topic(self, name: str) -> TopicView | None: ...

    def channels(self) -> list[Channel]: ...

    def tokens(self) -> list[TokenRecord]:
        """The same list until one is put or dropped, so that who looks often can tell; it is never changed."""


class TableViews(Protocol):
    """The store's own state in bulk."""

    def page(self, query: TableQuery) -> TablePage:
        """Rows of a table, from any thread. May show what is not durable yet: whoever hands rows out first lets
        the writer finish what it has begun."""

    def splits(self, table: TableName, state: str | None, most: int) -> list[Split]: ...

    def ledger(self, app: str) -> LedgerView | None: ...

    def ledgers(self, after: str, limit: int) -> list[LedgerView]: ...

    def audit(self, query: AuditQuery) -> tuple[list[AuditLine], str | None]:
        """A page of the audit log, and where the next one begins."""


class TransactionViews(Protocol):
    """Transactions and their calls."""

    def transaction(self, gid: str) -> TransactionView | None: ...

    def scan(
        self, state: str | None, group: str | None, after: str | None, limit: int
    ) -> tuple[list[TransactionView], str | None]: ...

    def calls(self, gid: str) -> CallsView | None:
        """The calls of a transaction; None if it is not known or has none."""

    def call_body(self, gid: str, index: int) -> bytes: ...

    def scan_calls(self, state: str | None, after: str | None, limit: int) -> tuple[list[CallView], str | None]:
        """A page of calls that are not done, `waiting` or `parked` or both, and where the next begins."""

    def call_topics(self) -> list[CallTopicView]: ...


class GroupViews(Protocol):
    """Consumer groups and where they stand."""

    def groups(self, group: str | None = None) -> list[GroupView]: ...

    def lags(self, most: int) -> list[GroupView]:
        """Groups with their lag alone, cheap enough to be asked for every few seconds."""

    def stored_offsets(self, group: str, topic: str) -> GroupView: ...


class StoreHealth(Protocol):
    """Whether the store works, and how much it has to do."""

    @property
    def remote(self) -> bool:
        """Whether a server keeps it, which may be slow to answer, or not answer at all."""

    def round_trips(self) -> int:
        """How many were made to that server."""

    def counts(self) -> Counts: ...

    def delayed_due(self, now: int) -> bool:
        """Whether a delayed message may be due. Any thread may ask, and no server is asked for it."""

    def failure(self) -> str | None:
        """Why the store has stopped, or None while it works."""

    def probe(self) -> None:
        """Write and delete something that needs room. Raises if the store cannot: one that was recovered may have a
        connection, and no room."""

    def recover(self) -> Written | None:
        """Try to leave a failure that may pass (a full disk, a server that is away); None while it stays. Once the
        store works again: what the write that failed has made after all, as far as somebody may wait for it."""

    def close(self) -> None: ...


class Store(LogViews, TableViews, TransactionViews, GroupViews, StoreHealth, Protocol):
    """A place that keeps transactions, queues and groups. One writer at a time calls `write` and the views; those of
    the log, and pages of tables, may be asked for beside it."""

    id: str
    settings: StoreSettings

    def write(self, ops: Sequence[StoreOp], now: int) -> Written:
        """Carry out the operations as one atomic unit and return once it is durable.

        An operation that is refused answers with an `OpResult` that has an error, the others go on. An exception
        means that nothing of the batch may be believed to have happened, nor not to have; so nothing is told of it.
        """
