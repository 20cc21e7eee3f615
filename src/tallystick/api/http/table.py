"""Every route of the native API, in one place: what it is called, what it takes, what it gives."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tallystick.api.http.people import MessagesIn, OutcomeIn, PartIn, TransactionIn
from tallystick.api.http.routes.groups import AckIn, NackIn, OffsetsIn, RenewIn
from tallystick.core.ops import AnswerChecks
from tallystick.core.wire import (
    BatchRequest,
    BatchResponse,
    BrokerInfo,
    CheckPoll,
    CheckPollResponse,
    FetchResponse,
    GroupView,
    ReceiveRequest,
    ReceiveResponse,
    TopicSpec,
    TopicView,
    TransactionPage,
    TransactionView,
)


class PositionOut(Struct):
    topic: str
    queue: int
    offset: int


class TopicList(Struct):
    topics: list[TopicView]


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
    Entry("POST", "/v1/parts/{part}", "transactions.put_part", "Prepare a part for a later commit", PartIn),
    Entry(
        "POST",
        "/v1/messages",
        "transactions.send",
        "Send without a transaction; with a gid once only",
        MessagesIn,
        SentOut,
    ),
    Entry("GET", "/v1/topics", "topics.list_", "List topics", None, TopicList),
    Entry("GET", "/v1/topics/{topic}", "topics.show", "Show a topic", None, TopicView),
    Entry("PUT", "/v1/topics/{topic}", "topics.put", "Create or change a topic", TopicSpec, TopicView),
    Entry("DELETE", "/v1/topics/{topic}", "topics.delete", "Delete a topic and its messages"),
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
    Entry(
        "POST", "/v1/checks/poll", "groups.poll_checks", "Wait to be asked for outcomes", CheckPoll, CheckPollResponse
    ),
    Entry("POST", "/v1/checks/answers", "groups.answer_checks", "Answer check-backs", AnswerChecks),
    Entry("GET", "/healthz", "system.healthz", "Is the process alive"),
    Entry("GET", "/readyz", "system.readyz", "Does it take work"),
    Entry("GET", "/metrics", "system.metrics", "Prometheus metrics"),
    Entry("GET", "/openapi.json", "system.openapi", "This description"),
    Entry("GET", "/docs", "system.docs", "This description, for people"),
]
