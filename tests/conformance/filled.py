"""A store with something of every kind in it, and all that a store shows."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from call_transactions import call, claims, finish, send
from call_transactions import prepare as prepare_calls
from columns import in_columns, laying_down_little
from engines import Place, message, prepare

from tallystick.core.access import Grant
from tallystick.core.ops import (
    Ack,
    Check,
    Commit,
    CommitBatch,
    CommitOffsets,
    Nack,
    PartRef,
    PreparePart,
    Rollback,
    Send,
)
from tallystick.core.token_records import TokenRecord
from tallystick.core.wire import TableName
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import (
    Audited,
    AuditQuery,
    ClaimChecks,
    DeleteTopic,
    FailChecks,
    PutToken,
    PutTopic,
    Subscribe,
    TableQuery,
    TrimTo,
)

PENDING, LEASED = "g-pending", "g-leased"


def fill(place: Place) -> str:
    """The receipt of a message that is lent."""
    _transactions(place)
    _batches(place)
    _calls(place)
    _access(place)
    place.do(PutTopic("gone", 2))
    place.do(Send([message("x", "gone")]))
    place.do(DeleteTopic("gone"))
    place.do(TrimTo("orders", {0: 1}, 100))
    return _consumers(place)


def _transactions(place: Place) -> None:
    place.do(PutTopic("orders", 3, 86_400_000))
    for number in range(30):
        place.do(Send([message(f"s{number}", key=f"k{number % 7}", headers={"h": f"ü{number}"}, tag="red")]))
    place.do(Send([message("later", deliver_at=place.now + 60_000)]))
    for gid in ("g-committed", "g-rolled-back", "g-checked", PENDING):
        place.do(prepare(gid, "a", "b", check=Check(after_ms=1_000)))
    place.do(Commit("g-committed"))
    place.do(Rollback("g-rolled-back"))
    place.do(Rollback("g-never-prepared"))
    place.do(prepare("g-parked", check=Check(after_ms=1, max_checks=1, on_exhausted="park")))
    place.wait(2_000)
    claimed = place.claim(ClaimChecks([place.channel()], 100, 30_000))
    assert set(claimed) == {"g-checked", "g-parked", PENDING}
    place.do(FailChecks({"g-parked": "nobody knows", "g-checked": "not now"}))


def _batches(place: Place) -> None:
    large = [message(f"c{number}" * 20, key=f"k{number}", tag="blue") for number in range(40)]
    with laying_down_little(rows=7):
        place.do(in_columns(place, "p-columns", large))
        place.do(in_columns(place, "p-unclaimed", large))
    place.do(PreparePart("p-messages", [message(f"m{number}") for number in range(1_200)]))
    place.do(CommitBatch("app", 3, "g-batch", [PartRef("p-columns", 40), PartRef("p-messages", 1_200)], "digest"))
    place.do(CommitBatch("another app", 1, "g-empty"))


def _calls(place: Place) -> None:
    place.do(Subscribe("call-topic", "http://a:1/topic", "remark"))
    place.do(send("g-waiting", call(body="w")))
    place.do(prepare_calls("g-held", call(body="h"), call("http://b:1/x")))
    place.do(send("g-done", call(body="d")))
    place.do(send("g-failed", call(body="f")))
    place.do(send(LEASED, call("http://c:1/x")))
    assert {one.gid for one in claims(place).claims} >= {"g-done", "g-failed", LEASED}
    finish(place, "g-done", "success")
    finish(place, "g-failed", "failure", error="no")


def _access(place: Place) -> None:
    for number in range(12):
        grants = (Grant(("producer",), topics=(f"orders.{number}.*",)),)
        record = TokenRecord(f"t{number}", f"id{number}", "digest", grants, place.now, expires_at=place.now + 1)
        place.do(Audited(PutToken(record), "ann", "token", "10.0.0.1", "create token", record.name))


def _consumers(place: Place) -> str:
    acked, given_back, *_, held = place.receive("g", max=9)
    place.do(Ack("g", [acked.receipt]))
    place.do(Nack("g", [given_back.receipt], delay_ms=5_000))
    place.receive("ordered", ordered=True, max=2)
    place.do(CommitOffsets("by-offset", "orders", {1: 2, 2: 1}))
    return held.receipt


def contents(store: KvStore) -> dict[str, Any]:
    """Through the protocol alone."""
    transactions = _all(lambda after: store.scan(None, None, after, 7))
    gids = sorted(one.gid for one in transactions)
    return msgspec.to_builtins(
        {
            "id": store.id,
            "topics": store.topics(),
            "messages": {
                (one.name, queue): _messages(store, one, queue) for one in store.topics() for queue in range(one.queues)
            },
            "transactions": [store.transaction(gid) for gid in gids],
            "calls": [store.calls(gid) for gid in gids],
            "open calls": _all(lambda after: store.scan_calls(None, after, 7)),
            "call topics": store.call_topics(),
            "groups": store.groups(),
            "ledgers": store.ledgers("", 100),
            "counts": store.counts(),
            "tokens": store.tokens(),
            "audit": _all(lambda after: store.audit(AuditQuery(5, after))),
            "channels": sorted(store.channels(), key=lambda one: one.id),
            "tables": {table: _table(store, table) for table in get_args(TableName)},
        },
        str_keys=False,
        builtin_types=(bytes,),
    )


def _all(page: Any) -> list[Any]:
    found, after = page(None)
    while after is not None:
        more, after = page(after)
        found += more
    return list(found)


def _messages(store: KvStore, topic: Any, queue: int) -> list[Any]:
    place = _Reading(store)
    return [(one.offset, one) for one in place.queue(topic.name, queue)]


class _Reading(Place):
    """Only what reads a queue."""

    def __init__(self, store: KvStore) -> None:
        self.store = store


def _table(store: KvStore, table: TableName) -> list[Any]:
    return _all(lambda after: _rows(store, table, after))


def _rows(store: KvStore, table: TableName, after: str | None) -> tuple[list[Any], str | None]:
    page = store.page(TableQuery(table, 5, after))
    return list(zip(*page.columns.values(), strict=True)), page.next
