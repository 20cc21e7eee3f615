"""What the outside may ask of a broker, one struct an operation.

The client library encodes these, the broker decodes them straight into what its store executes: no layer in
between copies a message. They hold no cycles, so the garbage collector need not look at them (`gc=False`). Each
batch answers with one `OpResult` (or `None`: done, nothing to add) an operation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tallystick.core.calls import CallPolicy, OutgoingCall, Remark
from tallystick.core.message import Invisible, Milliseconds, OutgoingMessage, Timeout
from tallystick.core.names import AppId, Gid, GroupName, HeaderName, HeaderValue, MemberName, PartId, TopicName

Outcome = Literal["committed", "rolled_back"]
Answer = Literal["committed", "rolled_back", "unknown"]
OnExhausted = Literal["park", "rollback"]
PartIndex = Annotated[int, Meta(ge=0, le=1_000_000)]
Reason = Annotated[str, Meta(max_length=1024)]
Offset = Annotated[int, Meta(ge=0)]
# How much one request may ask for, whatever its size in bytes: a group commit holds everybody else up.
MOST_AT_ONCE = 10_000
Digest = Annotated[str, Meta(max_length=128)]
Receipts = Annotated[list[str], Meta(max_length=MOST_AT_ONCE)]


class Check(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """How, when and how often the broker asks for the outcome.

    `via` names the way: any live member of the producer group, a URL, or a database from the broker's own
    configuration; `none`, where the broker allows it, asks nobody and commits when the time has come. `source` tells
    the one who answers which database holds the barrier row; `headers` and `timeout_ms` are for a URL.
    """

    via: Literal["group", "url", "database", "none"] = "group"
    target: Annotated[str, Meta(max_length=2048)] = ""
    source: Annotated[str, Meta(max_length=512)] = ""
    after_ms: Milliseconds | None = None
    max_checks: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    on_exhausted: OnExhausted | None = None
    headers: dict[HeaderName, HeaderValue] | None = None
    timeout_ms: Timeout | None = None


class Prepare(Struct, tag="prepare", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Store half messages and calls under a gid. `group` is the producer group; `member` the process that prepares;
    `remark` is kept with the calls and shown with them."""

    gid: Gid
    group: GroupName
    messages: list[OutgoingMessage]
    check: Check = Check()
    member: MemberName | None = None
    calls: list[OutgoingCall] = []
    call_options: CallPolicy | None = None
    remark: Remark = ""


class PreparePart(Struct, tag="part", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Store half messages as a part that no transaction claims yet; `index` numbers the requests of one part."""

    part: PartId
    messages: list[OutgoingMessage]
    index: PartIndex = 0
    ttl_ms: Milliseconds | None = None


class Piece(Struct, gc=False):
    """Messages for one queue of a topic in the form in which columns are stored (columnar/body.py). `queues` is among
    how many they were divided."""

    topic: str
    queues: int
    queue: int
    count: int
    columns: bytes
    values: bytes


class PrepareColumns(Struct, gc=False):
    """`PreparePart` for messages that came as columns and are kept as columns. No batch of a client holds it: the
    broker makes it of what it has checked. `messages` are those that go by themselves, each with its sequence;
    `check` is a checksum of the request."""

    part: str
    index: int
    ttl_ms: int | None
    count: int
    check: int
    pieces: list[Piece]
    messages: list[tuple[int, OutgoingMessage]]

    @property
    def topics(self) -> set[str]:
        return {piece.topic for piece in self.pieces} | {message.topic for _, message in self.messages}


class PartRef(Struct, forbid_unknown_fields=True, gc=False):
    """A part that a commit claims, with the number of messages it must hold."""

    part: PartId
    count: Annotated[int, Meta(ge=0)]


class Commit(Struct, tag="commit", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Give a transaction the outcome `committed`. With `parts`, also claim those; all of them or nothing. With
    `delay_ms`, its calls are not made before the transaction is that old."""

    gid: Gid
    parts: list[PartRef] = []
    delay_ms: Milliseconds = 0


class CommitBatch(Struct, tag="commit_batch", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Commit the parts of one batch of an application that numbers its batches, each once.

    A version that is not newer than the application's last one was decided before: its parts are dropped. `gid` is a
    new one for every try; the one that is carried out names the messages. `digest` is kept with the version and says
    what was committed under it, in words of the application's own: the broker does not look into it.
    """

    app: AppId
    version: Annotated[int, Meta(ge=0)]
    gid: Gid
    parts: list[PartRef] = []
    digest: Digest = ""


class DropParts(Struct, tag="drop_parts", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Drop parts that no transaction has claimed."""

    parts: list[PartId]


class Rollback(Struct, tag="rollback", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Give a transaction the outcome `rolled_back`. An unknown gid leaves a tombstone for a late prepare."""

    gid: Gid
    parts: list[PartId] = []


class Send(Struct, tag="send", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Messages and calls without a transaction. With a gid, which calls need, the broker drops what it has seen."""

    messages: list[OutgoingMessage]
    gid: Gid | None = None
    calls: list[OutgoingCall] = []
    call_options: CallPolicy | None = None
    remark: Remark = ""


class Ack(Struct, tag="ack", tag_field="op", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Settle leases: the messages are done for this group."""

    group: GroupName
    receipts: Receipts


class Nack(Struct, tag="nack", tag_field="op", omit_defaults=True, forbid_unknown_fields=True):
    """Give messages back: again after `delay_ms` (default: the group's backoff), or `dead` at once."""

    group: GroupName
    receipts: Receipts
    delay_ms: Milliseconds | None = None
    dead: bool = False
    reason: Reason = ""


class Renew(Struct, tag="renew", tag_field="op", omit_defaults=True, forbid_unknown_fields=True):
    """Keep messages invisible for longer."""

    group: GroupName
    receipts: Receipts
    invisible_ms: Invisible


class CommitOffsets(Struct, tag="offsets", tag_field="op", omit_defaults=True, forbid_unknown_fields=True):
    """Store a group's place in a topic's queues. With `expected`, only if each is still there. `mirror` if the place
    that counts is kept elsewhere, in the consumer's own database, and is only shown here."""

    group: GroupName
    topic: TopicName
    offsets: dict[int, Offset]
    expected: dict[int, int] | None = None
    mirror: bool = False


class AnswerChecks(Struct, tag="answers", tag_field="op", omit_defaults=True, forbid_unknown_fields=True):
    """What the producer's side says of transactions it was asked about. `group` and `member` are who says it: an alert
    about an answer that contradicts the outcome names them."""

    answers: Annotated[dict[Gid, Answer], Meta(max_length=MOST_AT_ONCE)]
    reasons: dict[Gid, Reason] = {}
    group: GroupName | None = None
    member: MemberName | None = None


ClientOp = (
    Prepare
    | PreparePart
    | Commit
    | CommitBatch
    | DropParts
    | Rollback
    | Send
    | Ack
    | Nack
    | Renew
    | CommitOffsets
    | AnswerChecks
)


class Position(Struct, array_like=True, gc=False):
    """Where a message ended up. A delayed message has no queue and no offset yet: both are -1."""

    topic: str
    queue: int
    offset: int


class OpResult(Struct, omit_defaults=True, gc=False):
    """The answer to one operation; `error` is the code of what went wrong."""

    error: str | None = None
    detail: str = ""
    field: str | None = None
    duplicate: bool = False
    positions: list[Position] = []
    stale: list[str] = []  # receipts that were refused
