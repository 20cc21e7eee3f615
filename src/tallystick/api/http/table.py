"""Every route of the native API, in one place."""

from __future__ import annotations

from tallystick.api.http.json_messages import PartIn
from tallystick.api.http.route import Route, route
from tallystick.api.http.routes import access, calls, groups, system, tables, topics, transactions
from tallystick.api.http.routes.groups import Deliveries, StaleReceipts
from tallystick.api.http.routes.system import Readiness
from tallystick.api.http.routes.topics import ReadMessages
from tallystick.core.wire import ARROW, JSON, MSGPACK, FetchResponse, ReceiveResponse

_STALE = {409: StaleReceipts}

ROUTES: tuple[Route, ...] = (
    route("POST", "/v1/batch", transactions.batch, "Many operations in one group commit"),
    route("GET", "/v1/info", system.info, "The store's name, limits and age of its oldest pending"),
    route("GET", "/v1/cluster", system.cluster, "The stores, and which broker works on each"),
    route("GET", "/v1/whoami", system.whoami, "Who the sender of this request is taken for, and what it may"),
    route("POST", "/v1/transactions", transactions.prepare, "Prepare a transaction", status=201),
    route("GET", "/v1/transactions", transactions.list_, "List transactions"),
    route("GET", "/v1/transactions/{gid}", transactions.show, "Show one transaction"),
    route("POST", "/v1/transactions/{gid}/commit", transactions.commit, "Commit"),
    route("POST", "/v1/transactions/{gid}/rollback", transactions.rollback, "Roll back"),
    route("POST", "/v1/transactions/{gid}/resume", transactions.resume, "Check a parked one again"),
    route(
        "POST",
        "/v1/transactions/{gid}/hurry",
        transactions.hurry,
        "Make its next check, or the next tries of its calls, now",
    ),
    route(
        "GET",
        "/v1/transactions/{gid}/calls",
        calls.show,
        "The calls of a transaction; with wait_ms, once each has had its first answer",
    ),
    route("POST", "/v1/transactions/{gid}/calls/resume", calls.resume, "Make parked calls again"),
    route("POST", "/v1/transactions/{gid}/calls/stop", calls.stop, "Make no more of its calls"),
    route("GET", "/v1/calls", calls.list_, "List calls that are in line or parked"),
    route("GET", "/v1/call-hosts", calls.hosts, "The hosts that are called, and whether they answer"),
    route("GET", "/v1/call-topics", calls.list_topics, "List call topics"),
    route("GET", "/v1/call-topics/{topic}", calls.show_topic, "Who is called for a topic"),
    route("DELETE", "/v1/call-topics/{topic}", calls.drop_topic, "Delete a call topic"),
    route("PUT", "/v1/call-topics/{topic}/subscribers", calls.subscribe, "Add a URL to a call topic"),
    route("DELETE", "/v1/call-topics/{topic}/subscribers", calls.unsubscribe, "Remove a URL from a call topic"),
    route(
        "POST",
        "/v1/parts/{part}",
        transactions.put_part,
        "Prepare a part for a later commit",
        status=201,
        takes={JSON: PartIn, MSGPACK: PartIn, ARROW: None},
    ),
    route("POST", "/v1/messages", transactions.send, "Send without a transaction; with a gid once only", status=201),
    route("DELETE", "/v1/parts/{part}", transactions.drop_part, "Drop a part that no transaction has claimed"),
    route("GET", "/v1/topics", topics.list_, "List topics, or wait for new messages in them"),
    route("GET", "/v1/topics/{topic}", topics.show, "Show a topic"),
    route("PUT", "/v1/topics/{topic}", topics.put, "Create or change a topic"),
    route("DELETE", "/v1/topics/{topic}", topics.delete, "Delete a topic and its messages"),
    route("GET", "/v1/topics/{topic}/offsets", topics.offsets, "The first offset of each queue at or after a time"),
    route("POST", "/v1/topics/{topic}/trim", topics.trim, "Remove what lies before offsets"),
    route(
        "GET",
        "/v1/topics/{topic}/queues/{queue:int}/messages",
        topics.fetch,
        "Read by offset: JSON, msgpack chunks, or an Arrow stream by Accept",
        gives={JSON: ReadMessages, MSGPACK: FetchResponse, ARROW: None},
    ),
    route("GET", "/v1/groups", groups.list_, "List consumer groups"),
    route("GET", "/v1/groups/{group}", groups.show, "A consumer group on each of its topics"),
    route(
        "POST",
        "/v1/groups/{group}/receive",
        groups.receive,
        "Lease messages",
        gives={JSON: Deliveries, MSGPACK: ReceiveResponse},
    ),
    route("POST", "/v1/groups/{group}/ack", groups.ack, "Settle leases", also=_STALE),
    route("POST", "/v1/groups/{group}/nack", groups.nack, "Give messages back", also=_STALE),
    route("POST", "/v1/groups/{group}/renew", groups.renew, "Keep messages invisible longer", also=_STALE),
    route("GET", "/v1/groups/{group}/offsets", groups.offsets, "Stored offsets"),
    route("PUT", "/v1/groups/{group}/offsets", groups.put_offsets, "Store offsets"),
    route("POST", "/v1/groups/{group}/reset", groups.reset, "Move a group to another place"),
    route("POST", "/v1/checks/poll", groups.poll_checks, "Wait to be asked for outcomes"),
    route("POST", "/v1/checks/answers", groups.answer_checks, "Answer check-backs"),
    route(
        "GET",
        "/v1/tables/{table}",
        tables.page,
        "A page of a table (see the reference of tables) as an Arrow stream; the next one in Tallystick-Next",
        gives={ARROW: None},
    ),
    route("GET", "/v1/tables/{table}/splits", tables.splits, "Ranges of a table to be read in parallel"),
    route("GET", "/v1/ledger", tables.list_ledger, "Applications that number their batches"),
    route("GET", "/v1/ledger/{app}", tables.show_ledger, "The last batch of an application"),
    route("DELETE", "/v1/ledger/{app}", tables.forget_app, "Forget an application: its numbers begin anew"),
    route("POST", "/v1/ledger/{app}/{version:int}", tables.commit_batch, "Commit the parts of a batch, once"),
    route("POST", "/v1/tokens", access.create, "Make a token; the answer shows it, this once", status=201),
    route("GET", "/v1/tokens", access.list_, "List tokens, without their secrets"),
    route("DELETE", "/v1/tokens/{name}", access.revoke, "Revoke a token"),
    route("GET", "/v1/audit", access.audit, "Who did what, the newest first"),
    route("GET", "/healthz", system.healthz, "Is the process alive"),
    route("GET", "/readyz", system.readyz, "Does it take work", also={503: Readiness}),
    route("GET", "/metrics", system.metrics, "Prometheus metrics", gives={"text/plain": None}),
    route("GET", "/openapi.json", system.openapi, "This description", gives={JSON: None}),
    route("GET", "/docs", system.docs, "This description, for people", gives={"text/html": None}),
)
