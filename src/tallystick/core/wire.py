"""Requests and answers of the HTTP API that are not operations of a batch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from tallystick.core.access import CallerLimits, Grant
from tallystick.core.message import MAX_INVISIBLE_MS, Milliseconds, StoredMessage, Timestamp
from tallystick.core.names import GroupName, MemberName, TopicName
from tallystick.core.ops import MOST_AT_ONCE, ClientOp, Offset, OpResult

MSGPACK = "application/msgpack"
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"

TransactionState = Literal["prepared", "parked", "committed", "rolled_back"]
TableName = Literal["transactions", "half", "op", "offsets", "delayed", "calls", "audit"]

SOURCE_HEADER = "Tallystick-Source"
"""With a check-back by URL: the database that holds the outcome, percent-encoded, so that no other one answers."""


class BatchRequest(Struct, forbid_unknown_fields=True):
    ops: Annotated[list[ClientOp], Meta(max_length=MOST_AT_ONCE)]


class BatchResponse(Struct):
    results: list[OpResult | None]


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is the stable word, `field` the path of the part of the request that is wrong."""

    title: str
    status: int
    detail: str
    code: str
    type: str = "about:blank"
    field: str | None = None


class BrokerInfo(Struct):
    store: str
    version: str
    now_ms: int
    dedup_retention_ms: int
    oldest_pending_at: int | None
    limits: dict[str, int]
    calls_waiting: int = 0
    calls_parked: int = 0
    grpc_port: int = 0  # 0: none, or one that the system chose
    weaknesses: list[str] = []  # of the store's server: why it may lose what was acknowledged


class CallerView(Struct):
    """Who the broker takes the sender of a request for: a name, how it is known (open: nobody is asked), what it may,
    and where the request came from. `expires_at` in milliseconds since the epoch, 0 for never."""

    name: str
    kind: str
    grants: list[Grant]
    limits: CallerLimits
    expires_at: int = 0
    source: str = ""


class ClusterStore(Struct):
    """A store and its owner. `url` is the owner's address and ends in /stores/<id>; it is empty without an owner, and
    for a single broker. `owned_ms`: how long the owner has had it, at least. `vacant_ms`: how long it had no owner
    before, or has had none so far, from the last heartbeat of a dead owner. `trouble`: why the store takes no new
    messages; only its owner knows that."""

    id: str
    number: int = 0
    epoch: int = 0
    owner: str = ""  # the id of a broker
    url: str = ""
    owned_ms: int | None = None
    vacant_ms: int | None = None
    trouble: str = ""


class ClusterBroker(Struct):
    """`alive` as the answering broker sees it, which received its last heartbeat `silent_ms` ago."""

    id: str
    name: str
    url: str
    grpc_url: str = ""
    alive: bool = True
    leaving: bool = False
    silent_ms: int | None = None


class ClusterView(Struct):
    """`broker` is the id of the answering broker. A single broker has one store and names no brokers. With
    `engine_away` the shared engine does not answer it, and everything is as of `age_ms` ago. `not_ready` is the reason
    that its `/readyz` gives, empty if it is ready."""

    stores: list[ClusterStore]
    brokers: list[ClusterBroker] = []
    broker: str = ""
    engine_away: bool = False
    age_ms: int = 0
    not_ready: str = ""


class TopicSpec(Struct, forbid_unknown_fields=True, omit_defaults=True):
    queues: Annotated[int, Meta(ge=1)] | None = None
    retention_ms: Milliseconds | None = None


class TopicView(Struct, omit_defaults=True):
    """`begins` is where the queues began, `starts` what is still kept of them. A topic that was deleted and made again
    begins where the deleted one ended. `missing_on`: stores of a cluster that do not have it (yet), whose queues are
    empty."""

    name: str
    queues: int
    retention_ms: int
    created_at: int
    starts: list[int]
    ends: list[int]
    begins: list[int] = []
    missing_on: list[str] = []

    def begin(self, queue: int) -> int:
        return self.begins[queue] if queue < len(self.begins) else 0


class LedgerVersion(Struct):
    """A batch that an application has committed: how many messages, and the digest that came with it (or none)."""

    version: int
    messages: int
    digest: str


class LedgerView(Struct):
    """An application that numbers its batches, and the last batch it committed. `earlier` has those before it, as far
    as they are remembered, oldest first; a list of applications leaves them out."""

    app: str
    version: int
    gid: str
    messages: int
    committed_at: int
    digest: str = ""
    earlier: list[LedgerVersion] = []


class TransactionView(Struct, omit_defaults=True):
    gid: str
    state: TransactionState
    group: str = ""
    messages: int = 0
    created_at: int = 0
    resolved_at: int = 0
    resolved_by: str = ""
    check_via: str = ""
    check_target: str = ""
    checks: int = 0
    next_check_at: int = 0
    last_error: str = ""
    calls: int = 0


class TransactionPage(Struct):
    transactions: list[TransactionView]
    next: str | None


class FetchResponse(Struct):
    """Chunks as they are stored. The first may begin before `start`, the reader skips to it. `store` names whose
    offsets these are: another data directory may serve the address by now."""

    topic: str
    queue: int
    start: int
    next: int
    end: int
    chunks: list[Raw]
    store: str = ""


class ReceiveRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    topic: TopicName
    max: Annotated[int, Meta(ge=1, le=1_000)] = 32
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    invisible_ms: Annotated[int, Meta(ge=1, le=MAX_INVISIBLE_MS)] = 30_000
    ordered: bool = False
    start: Literal["earliest", "latest"] = "earliest"
    tags: list[str] | None = None
    member: MemberName | None = None


class Delivery(Struct, omit_defaults=True, gc=False):
    """A message under lease."""

    message: StoredMessage
    receipt: str
    attempt: int
    lease_until: int


class ReceiveResponse(Struct):
    deliveries: list[Delivery]
    store: str = ""


class CheckPoll(Struct, forbid_unknown_fields=True, omit_defaults=True):
    group: GroupName
    member: MemberName
    max: Annotated[int, Meta(ge=1, le=1_000)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 20_000


class CheckRequest(Struct, omit_defaults=True):
    """One transaction whose outcome the broker asks for."""

    gid: str
    source: str = ""
    checks: int = 0
    created_at: int = 0


class CheckPollResponse(Struct):
    checks: list[CheckRequest]


class ResetRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where a consumer group is to go on in a topic: exactly one of `to`, `offsets` (by queue) and `timestamp` (what
    was stored then, in milliseconds since the epoch, or later)."""

    topic: TopicName
    to: Literal["earliest", "latest"] | None = None
    offsets: dict[int, Offset] | None = None
    timestamp: Timestamp | None = None


class QueueOffset(Struct):
    queue: int
    offset: int
    start: int
    end: int
    lag: int


class GroupView(Struct, omit_defaults=True):
    """A consumer group's state on one topic."""

    group: str
    topic: str
    queues: list[QueueOffset]
    leased: int = 0
    lag: int = 0
    oldest_unsettled_at: int | None = None


class Split(Struct):
    """A range of a table; ranges of one answer are disjoint and together the whole table."""

    after: str | None
    before: str | None


class AuditLine(Struct, omit_defaults=True):
    """What somebody did: `who` by name, and how that is known (`kind`), from which address, the deed as one word, and
    what it was done to. `place` is where the line stands in its log."""

    at: int
    who: str
    kind: str
    source: str
    action: str
    subject: str
    place: str = ""


class AuditPage(Struct):
    """Lines, the newest first, and where the next page begins."""

    lines: list[AuditLine]
    next: str | None
