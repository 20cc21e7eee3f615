"""Gathering the evidence after the run: from both databases, and from the broker over its public API."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.core.errors import NotFound
from tallystick.demo import banks
from tallystick.demo.verdict import Evidence
from tallystick.link import Link

PAGE = 1_000


class CheckBacks(NamedTuple):
    """What became of the transactions whose producer did not tell their outcome."""

    committed: int
    rolled_back: int


def gather(broker: Link, bank_a: Path, bank_b: Path, money_before: int) -> tuple[Evidence, CheckBacks]:
    transactions = list(_transactions(broker))
    evidence = Evidence(
        wished=banks.ids(bank_a, "wish"),
        debited=banks.amounts(bank_a, "debit"),
        refused=banks.ids(bank_a, "refusal"),
        logged=_log(broker),
        credited=banks.amounts(bank_b, "credit"),
        debited_gids=banks.debit_gids(bank_a),
        committed_gids={one["gid"] for one in transactions if one["state"] == "committed"},
        money_before=money_before,
        money_at_a=banks.money(bank_a),
        money_at_b=banks.money(bank_b),
        unresolved=sum(one["state"] in ("prepared", "parked") for one in transactions),
    )
    by_check = Counter(one["state"] for one in transactions if one.get("resolved_by") == "check")
    return evidence, CheckBacks(by_check["committed"], by_check["rolled_back"])


def pending(broker: Link) -> int:
    """Transactions without an outcome (no more than a page of them are counted)."""
    return len(broker.get("transactions", state="prepared", limit=PAGE)["transactions"])


def unsettled(broker: Link) -> int:
    """Messages that bank B has not settled yet."""
    try:
        views = broker.get("groups", banks.CONSUMERS)["groups"]
    except NotFound:  # no consumer came as far as its first request
        return sum(end for _, end in _queues(broker))
    return sum(int(view.get("lag", 0)) for view in views)


def _transactions(broker: Link) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        page = broker.get("transactions", group=banks.PRODUCERS, limit=PAGE, after=after)
        yield from page["transactions"]
        after = page["next"]
        if after is None:
            return


def _queues(broker: Link) -> list[tuple[int, int]]:
    try:
        ends = broker.get("topics", banks.TOPIC)["ends"]
    except NotFound:
        return []
    return list(enumerate(ends))


def _log(broker: Link) -> list[tuple[int, int]]:
    """(transfer id, amount) of every message in every queue."""
    found: list[tuple[int, int]] = []
    for queue, end in _queues(broker):
        offset = 0
        while offset < end:
            page = broker.get("topics", banks.TOPIC, "queues", str(queue), "messages", offset=offset, max=PAGE)
            found += [_transfer(message["value"]) for message in page["messages"]]
            offset = page["next"]
    return found


def _transfer(value: Any) -> tuple[int, int]:
    content = json.loads(value) if isinstance(value, str) else value
    return int(content["id"]), int(content["amount"])
