"""Gathering the evidence after the run: from both databases, and from the broker over its public API."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.demo import banks
from tallystick.demo.looks import log_values, transactions, unsettled_messages
from tallystick.demo.verdict import RunEvidence
from tallystick.link import Link


class CheckBacks(NamedTuple):
    """What became of the transactions whose producer did not tell their outcome."""

    committed: int
    rolled_back: int


def gather(broker: Link, bank_a: Path, bank_b: Path, money_before: int) -> tuple[RunEvidence, CheckBacks]:
    found = list(transactions(broker, group=banks.PRODUCERS))
    evidence = RunEvidence(
        wished=banks.ids(bank_a, "wish"),
        debited=banks.amounts(bank_a, "debit"),
        refused=banks.ids(bank_a, "refusal"),
        logged=_log(broker),
        credited=banks.amounts(bank_b, "credit"),
        debited_gids=banks.debit_gids(bank_a),
        committed_gids={one["gid"] for one in found if one["state"] == "committed"},
        money_before=money_before,
        money_at_a=banks.money(bank_a),
        money_at_b=banks.money(bank_b),
        unresolved=sum(one["state"] in ("prepared", "parked") for one in found),
    )
    by_check = Counter(one["state"] for one in found if one.get("resolved_by") == "check")
    return evidence, CheckBacks(by_check["committed"], by_check["rolled_back"])


def unsettled(broker: Link) -> int:
    """Messages that bank B has not settled yet."""
    return unsettled_messages(broker, banks.CONSUMERS, banks.TOPIC)


def _log(broker: Link) -> list[tuple[int, int]]:
    """(transfer id, amount) of every message in every queue."""
    return [_transfer(value) for value in log_values(broker, banks.TOPIC)]


def _transfer(value: Any) -> tuple[int, int]:
    content = json.loads(value) if isinstance(value, str) else value
    return int(content["id"]), int(content["amount"])
