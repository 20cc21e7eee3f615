"""Every route of the native API, in one place: what it is called, what it takes, what it gives."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tallystick.api.http.people import BatchIn, MessagesIn, OutcomeIn, PartIn, TransactionIn, TrimIn
from tallystick.api.http.routes.calls import SubscriberIn
from tallystick.api.http.routes.groups import AckIn, NackIn, OffsetsIn, RenewIn
from tallystick.broker.calls.deliverer import HostView
from tallystick.core.calls import CallPage, CallsView, CallTopicView
from tallystick.core.ops import AnswerChecks
from tallystick.core.wire import (
    BatchRequest,
    BatchResponse,
    BrokerInfo,
    CheckPoll,
    CheckPollResponse,
    FetchResponse,
    GroupView,
    LedgerView,
    ReceiveRequest,
    ReceiveResponse,
    ResetRequest,
    TopicSpec,
    TopicView,
    TransactionPage,
    TransactionView,
)
from tallystick.store.protocol import Split


class PositionOut(Struct):
    topic: str
    queue: int
    offset: int


class TopicList(Struct):
    """`position` is another number as soon as one of these topics has more messages."""

    topics: list[TopicView]
    position: int


class TopicOffsets(Struct):
    topic: str
    offsets: list[int]


class LedgerList(Struct):
    apps: list[LedgerView]


class BatchOut(Struct):
    """`duplicate` if the version was decided before; `last` is the newest one of the application."""

    app: str
    version: int
    last: int
    duplicate: bool
    gid: str | None
    messages: int | None


class SplitList(Struct):
    splits: list[Split]


class CallTopicList(Struct):
    topics: list[CallTopicView]


class HostList(Struct):
    hosts: list[HostView]


class GroupList(Struct):
    groups: list[GroupView]


class StaleReceipts(Struct):
    """Receipts that held no lease any more; the status is 409 if there are any."""

    stale: list[str]


class SentOut(Struct):
    """Where the messages are; `duplicate` if the gid had been sent before."""

    duplicate: bool
    positions: list[PositionOut]


class Entry(Struct):
    method: str
    path: str
    handler: str  # module.function under `routes`
    summary: str
    takes: Any = None
    gives: Any = None
    query: dict[str, str] = {}


ENTRIES = [
    Entry("POST", "/v1/batch", "", "Many operations in one group commit", BatchRequest, BatchResponse),
    Entry("GET", "/v1/info", "system.info", "The store's name, limits and age of its oldest pending", None, BrokerInfo),
    Entry("POST", "/v1/transactions", "transactions.prepare", "Prepare a transaction", TransactionIn, TransactionView),
    Entry(
        "GET",
        "/v1/transactions",
        "transactions.list_",
        "List transactions",
        None,
        TransactionPage,
        {
            "state": "prepared, parked, committed or rolled_back",
            "group": "of this producer group",
            "limit": "page size",
            "after": "`next` of the page before",
        },
    ),
    Entry("GET", "/v1/transactions/{gid}", "transactions.show", "Show one transaction", None, TransactionView),
    Entry("POST", "/v1/transactions/{gid}/commit", "transactions.commit", "Commit", OutcomeIn, TransactionView),
    Entry("POST", "/v1/transactions/{gid}/rollback", "transactions.rollback", "Roll back", OutcomeIn, TransactionView),
    Entry(
        "POST",
        "/v1/transactions/{gid}/resume",
        "transactions.resume",
        "Check a parked one again",
        None,
        TransactionView,
    ),
    Entry(
        "POST",
        "/v1/transactions/{gid}/hurry",
        "transactions.hurry",
        "Make its next check, or the next tries of its calls, now",
        None,
        TransactionView,
    ),
    Entry(
        "GET",
        "/v1/transactions/{gid}/calls",
        "calls.show",
        "The calls of a transaction; with wait_ms, once each has had its first answer",
        None,
        CallsView,
        {"wait_ms": "how long to wait at most"},
    ),
    Entry("POST", "/v1/transactions/{gid}/calls/resume", "calls.resume", "Make parked calls again", None, CallsView),
    Entry("POST", "/v1/transactions/{gid}/calls/stop", "calls.stop", "Make no more of its calls", None, CallsView),
    Entry(
        "GET",
        "/v1/calls",
        "calls.list_",
        "List calls that are in line or parked",
        None,
        CallPage,
        {"state": "waiting or parked", "limit": "page size", "after": "`next` of the page before"},
    ),
    Entry("GET", "/v1/call-hosts", "calls.hosts", "The hosts that are called, and whether they answer", None, HostList),
    Entry("GET", "/v1/call-topics", "calls.list_topics", "List call topics", None, CallTopicList),
    Entry("GET", "/v1/call-topics/{topic}", "calls.show_topic", "Who is called for a topic", None, CallTopicView),
    Entry("DELETE", "/v1/call-topics/{topic}", "calls.drop_topic", "Delete a call topic"),
    Entry(
        "PUT",
        "/v1/call-topics/{topic}/subscribers",
        "calls.subscribe",
        "Add a URL to a call topic",
        SubscriberIn,
        CallTopicView,
    ),
    Entry(
        "DELETE",
        "/v1/call-topics/{topic}/subscribers",
        "calls.unsubscribe",
        "Remove a URL from a call topic",
        None,
        None,
        {"url": "the URL to remove"},
    ),
    Entry("POST", "/v1/parts/{part}", "transactions.put_part", "Prepare a part for a later commit", PartIn),
    Entry(
        "POST",
        "/v1/messages",
        "transactions.send",
        "Send without a transaction; with a gid once only",
        MessagesIn,
        SentOut,
    ),
    Entry("DELETE", "/v1/parts/{part}", "transactions.drop_part", "Drop a part that no transaction has claimed"),
    Entry(
        "GET",
        "/v1/topics",
        "topics.list_",
        "List topics, or wait for new messages in them",
        None,
        TopicList,
        {
            "names": "only these, separated by commas",
            "position": "wait while it is still this one",
            "wait_ms": "how long to wait at most",
        },
    ),
    Entry("GET", "/v1/topics/{topic}", "topics.show", "Show a topic", None, TopicView),
    Entry("PUT", "/v1/topics/{topic}", "topics.put", "Create or change a topic", TopicSpec, TopicView),
    Entry("DELETE", "/v1/topics/{topic}", "topics.delete", "Delete a topic and its messages"),
    Entry(
        "GET",
        "/v1/topics/{topic}/offsets",
        "topics.offsets",
        "The first offset of each queue at or after a time",
        None,
        TopicOffsets,
        {"timestamp": "milliseconds since the epoch"},
    ),
    Entry("POST", "/v1/topics/{topic}/trim", "topics.trim", "Remove what lies before offsets", TrimIn, TopicView),
    Entry(
        "GET",
        "/v1/topics/{topic}/queues/{queue:int}/messages",
        "topics.fetch",
        "Read by offset: JSON, msgpack chunks, or an Arrow stream by Accept",
        None,
        FetchResponse,
        {
            "offset": "first offset",
            "max": "messages at most",
            "max_bytes": "bytes at most",
            "wait_ms": "long poll",
            "end": "Arrow: offset to stop at",
            "columns": "Arrow: only these, separated by commas",
        },
    ),
    Entry("GET", "/v1/groups", "groups.list_", "List consumer groups", None, GroupList),
    Entry("GET", "/v1/groups/{group}", "groups.show", "A consumer group on each of its topics", None, GroupList),
    Entry("POST", "/v1/groups/{group}/receive", "groups.receive", "Lease messages", ReceiveRequest, ReceiveResponse),
    Entry("POST", "/v1/groups/{group}/ack", "groups.ack", "Settle leases", AckIn, StaleReceipts),
    Entry("POST", "/v1/groups/{group}/nack", "groups.nack", "Give messages back", NackIn, StaleReceipts),
    Entry("POST", "/v1/groups/{group}/renew", "groups.renew", "Keep messages invisible longer", RenewIn, StaleReceipts),
    Entry(
        "GET",
        "/v1/groups/{group}/offsets",
        "groups.offsets",
        "Stored offsets",
        None,
        GroupView,
        {"topic": "of this topic"},
    ),
    Entry("PUT", "/v1/groups/{group}/offsets", "groups.put_offsets", "Store offsets", OffsetsIn),
    Entry("POST", "/v1/groups/{group}/reset", "groups.reset", "Move a group to another place", ResetRequest, GroupView),
    Entry(
        "POST", "/v1/checks/poll", "groups.poll_checks", "Wait to be asked for outcomes", CheckPoll, CheckPollResponse
    ),
    Entry("POST", "/v1/checks/answers", "groups.answer_checks", "Answer check-backs", AnswerChecks),
    Entry(
        "GET",
        "/v1/tables/{table}",
        "tables.page",
        "A page of a table (see the reference of tables) as an Arrow stream; the next one in Tallystick-Next",
        None,
        None,
        {
            "limit": "rows at most",
            "after": "`Tallystick-Next` of the page before, or of a split",
            "before": "of a split",
            "state": "prepared, parked, pending (both), committed or rolled_back; of calls: waiting or parked",
            "group": "of this group",
            "older_than_ms": "transactions made longer ago than this",
        },
    ),
    Entry(
        "GET",
        "/v1/tables/{table}/splits",
        "tables.splits",
        "Ranges of a table to be read in parallel",
        None,
        SplitList,
        {"n": "how many at most", "state": "as for the table"},
    ),
    Entry(
        "GET",
        "/v1/ledger",
        "tables.list_ledger",
        "Applications that number their batches",
        None,
        LedgerList,
        {"limit": "how many at most", "after": "the application before the first"},
    ),
    Entry("GET", "/v1/ledger/{app}", "tables.show_ledger", "The last batch of an application", None, LedgerView),
    Entry("DELETE", "/v1/ledger/{app}", "tables.forget_app", "Forget an application: its numbers begin anew"),
    Entry(
        "POST",
        "/v1/ledger/{app}/{version:int}",
        "tables.commit_batch",
        "Commit the parts of a batch, once",
        BatchIn,
        BatchOut,
    ),
    Entry("GET", "/healthz", "system.healthz", "Is the process alive"),
    Entry("GET", "/readyz", "system.readyz", "Does it take work"),
    Entry("GET", "/metrics", "system.metrics", "Prometheus metrics"),
    Entry("GET", "/openapi.json", "system.openapi", "This description"),
    Entry("GET", "/docs", "system.docs", "This description, for people"),
]
