"""Each engine against the model, and the machine against seeded bugs that it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engines import ENGINES
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import StoreMachine, outgoing

from tallystick.core.ops import Commit, OpResult, Rollback
from tallystick.core.transaction import CheckState, Prepared, Resolved
from tallystick.store.kv import checks, keys, leases, parts, transactions
from tallystick.store.kv.batch import Batch

EXAMPLES = {"memory": 300, "rocksdb": 100}
BOUNDED = settings(
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
HUNT = settings(BOUNDED, max_examples=400, phases=[Phase.generate])


class RocksMachine(StoreMachine):
    engine = "rocksdb"


MACHINES = dict(zip(ENGINES, (StoreMachine, RocksMachine), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_does_what_the_model_does(engine: str) -> None:
    run_state_machine_as_test(MACHINES[engine], settings=settings(BOUNDED, max_examples=EXAMPLES[engine]))


transactions_rollback, transactions_commit = transactions.rollback, transactions.commit
checks_claim_one, checks_after, leases_held = checks._claim_one, checks.after_unanswered, leases._held


# --- seeded bugs -----------------------------------------------------------------------------------------------------


def no_tombstone(batch: Batch, op: Rollback) -> OpResult | None:
    result = transactions_rollback(batch, op)
    batch.delete("tx", keys.transaction(op.gid))
    return result


def commit_twice(batch: Batch, op: Commit) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if isinstance(existing, Resolved) and existing.outcome == "committed":
        transactions.append(batch, op.gid, [outgoing(("red", "k1", "0.0"))])
    return transactions_commit(batch, op)


def claim_without_a_count(batch: Batch, refs: list[Any]) -> Any:
    return [text for ref in refs for _, record in parts._records(batch, ref.part) for text in record.messages]


def forgets_the_lease(batch: Batch, gid: str, record: Prepared, due_at: int, lease_ms: int) -> Any:
    return checks_claim_one(batch, gid, record, due_at, 0)


def counts_nothing(state: CheckState, *rest: Any) -> Any:
    follows = checks_after(state, *rest)
    return CheckState(0, follows.next_at) if isinstance(follows, CheckState) else follows


def any_receipt(batch: Batch, group: str, receipts: list[str]) -> Any:
    held, stale = leases_held(batch, group, receipts)
    return held, [] if not held else stale


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a rollback leaves no tombstone": (transactions, "rollback", no_tombstone),
    "a second commit appends again": (transactions, "commit", commit_twice),
    "a claimed part stays": (parts, "claim", claim_without_a_count),
    "the cursor does not move": (leases, "store_cursor", lambda *_: None),
    "a lease never ends": (leases._Receiving, "take_visible", lambda _: None),
    "a stale receipt is taken": (leases, "_held", any_receipt),
    "a claim is no lease": (checks, "_claim_one", forgets_the_lease),
    "unanswered checks are not counted": (checks, "after_unanswered", counts_nothing),
    "a pending transaction stays in line": (Batch, "delete", lambda *_: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_a_seeded_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong = BUGS[bug]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        run_state_machine_as_test(StoreMachine, settings=HUNT)
    if isinstance(found.value, ExceptionGroup):
        assert found.group_contains(AssertionError)
