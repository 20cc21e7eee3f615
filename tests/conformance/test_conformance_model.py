"""Each engine against the model, and the machine against seeded bugs that it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engines import DURABLE_FIRST
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import StoreMachine, outgoing

import shared_stores
from shared_stores import SHARED_FULL
from tallystick.core.calls import CallResult
from tallystick.core.ops import Commit, OpResult, Rollback
from tallystick.core.transaction import CheckState, Prepared, Resolved
from tallystick.store.kv import (
    audit,
    calls,
    checks,
    guards,
    keys,
    leases,
    lives,
    parts,
    tokens,
    tombstones,
    transactions,
)
from tallystick.store.kv.batch import Batch
from tallystick.store.protocol import Audited, DropToken, FinishCalls, Progress

EXAMPLES = {"memory": 300, "rocksdb": 100, "postgresql": 40, "mysql": 40, "redis": 40}
BOUNDED = settings(
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
HUNT = settings(BOUNDED, max_examples=2_000, phases=[Phase.generate])


class RocksMachine(StoreMachine):
    engine = "rocksdb"


def machine(engine: str) -> type[StoreMachine]:
    """One name for all that are shared: the histories that are drawn depend on it, and each is to meet those that are
    known to find the seeded bugs."""
    local = {"memory": StoreMachine, "rocksdb": RocksMachine}
    return local.get(engine) or type("PostgresqlMachine", (StoreMachine,), {"engine": engine})


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("engine", DURABLE_FIRST)
def test_an_engine_does_what_the_model_does(engine: str, request: pytest.FixtureRequest) -> None:
    shared_stores.start(engine, request)
    run_state_machine_as_test(machine(engine), settings=settings(BOUNDED, max_examples=EXAMPLES[engine]))


transactions_rollback, transactions_commit = transactions.rollback, transactions.commit
checks_claim_one, checks_after, leases_held = checks._claim_one, checks.after_unanswered, leases._held
calls_settle, calls_line_up, calls_put_in_line = calls.settle, calls._line_up, calls._put_in_line
calls_try_again = calls._try_again
lives_last = lives.last
tokens_drop = tokens.drop


# --- seeded bugs -----------------------------------------------------------------------------------------------------


def no_tombstone(batch: Batch, op: Rollback) -> OpResult | None:
    result = transactions_rollback(batch, op)
    batch.delete("tx", keys.TRANSACTION.key(op.gid))
    return result


def commit_twice(batch: Batch, op: Commit) -> OpResult | None:
    existing = batch.transaction(op.gid)
    if isinstance(existing, Resolved) and existing.outcome == "committed":
        transactions.append(batch, op.gid, [outgoing(("red", "k1", "0.0"))], batch.now)
    return transactions_commit(batch, op)


def claim_without_a_count(batch: Batch, refs: list[Any]) -> Any:
    return [record for ref in refs for _, record in parts._records(batch, ref.part)]


def forgets_the_lease(batch: Batch, gid: str, record: Prepared, due_at: int, lease_ms: int) -> Any:
    return checks_claim_one(batch, gid, record, due_at, 0)


def counts_nothing(state: CheckState, *rest: Any) -> Any:
    follows = checks_after(state, *rest)
    return CheckState(0, follows.next_at) if isinstance(follows, CheckState) else follows


def any_receipt(batch: Batch, group: str, receipts: list[str]) -> Any:
    held, stale = leases_held(batch, group, receipts)
    return held, [] if not held else stale


def calls_of_every_outcome(
    batch: Batch, gid: str, spec: Any, target: str, outcome: str, created_at: int, delay_ms: int
) -> None:
    calls_settle(batch, gid, spec, target, "committed", created_at, delay_ms)


def all_at_once(batch: Batch, gid: str, state: calls.CallsState) -> None:
    concurrent, state.concurrent = state.concurrent, True
    calls_line_up(batch, gid, state)
    state.concurrent = concurrent


def forgets_the_line(batch: Batch, gid: str, index: int, progress: Any, at: int, why: bytes) -> None:
    """A due entry that is not written, although the call's own state says that it waits."""
    calls_put_in_line(batch, gid, index, progress, at, why)
    if why == calls.RETRY:
        batch.delete("index", keys.DUE_CALL.key(progress.channel, at, gid, index))


def wakes_nobody(batch: Batch, gid: str, index: int, progress: Any, at: int, why: bytes) -> None:
    calls_put_in_line(batch, gid, index, progress, at, why)
    batch.called.clear()


def takes_back_success(batch: Batch, op: FinishCalls) -> None:
    """A late result of another try of a call that is done brings it back into line."""
    for result in op.results:
        state = batch.calls_state(result.gid)
        if state is None:
            continue
        progress = state.calls[result.index]
        if result.outcome == "success" and progress.state != "done":
            calls._succeed(batch, result, state, progress)
        elif result.outcome != "success" and progress.state in ("leased", "done"):
            calls._try_again(batch, result, state, progress)
        batch.keep_calls_state(result.gid, state)


def counts_what_was_not_tried(batch: Batch, result: CallResult, state: Any, progress: Any) -> None:
    result.outcome = "error" if result.outcome == "released" else result.outcome
    calls_try_again(batch, result, state, progress)


def forgets_unfinished(batch: Batch, gid: str) -> None:
    batch.delete("index", b"x" + gid.encode())
    batch.delete("tx", keys.CALLS.key(gid))
    batch.delete("tx", keys.TRANSACTION.key(gid))


def forgets_other_queues(batch: Batch, name: str) -> lives.Ended:
    """Where queues ended that only an earlier life had."""
    ended = lives_last(batch, name)
    return lives.Ended(ended.created_at, ended.ends[:1], ended.receivers, ended.readers)


def writes_down_first(batch: Batch, op: Audited, handlers: Any) -> Any:
    audit.write_down(batch, op)
    return handlers[type(op.op)](batch, op.op)


def drops_from_memory_only(batch: Batch, op: DropToken) -> None:
    """It is there again once the store is opened anew."""
    tokens_drop(batch, op)
    batch.changes.keys["index"].pop(keys.TOKEN.key(op.name), None)


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
    "the calls of a rolled back transaction are made": (calls, "settle", calls_of_every_outcome),
    "a call does not wait for the one before it": (calls, "_line_up", all_at_once),
    "a due call is not in its line": (calls, "_put_in_line", forgets_the_line),
    "nobody is told of a due call": (calls, "_put_in_line", wakes_nobody),
    "a done call is made again": (calls, "finish", takes_back_success),
    "a call is lost with its deliverer": (calls, "requeue", lambda *_: Progress(0)),
    "a call that was not made counts as tried": (calls, "_try_again", counts_what_was_not_tried),
    "calls are forgotten before they are made": (tombstones, "_forget", forgets_unfinished),
    "a topic made again begins at 0": (lives, "last", lambda *_: lives.NEVER),
    "a topic made again remembers its first queue only": (lives, "last", forgets_other_queues),
    "the guard of a transaction is forgotten": (guards, "_may_touch", lambda *_: True),
    "answers for other groups are taken": (checks, "covers", lambda *_: True),
    "a deed is not written down": (audit, "write_down", lambda *_: None),
    "a deed that was refused is written down": (audit, "audited", writes_down_first),
    "a revoked token comes back": (tokens, "drop", drops_from_memory_only),
}


IN_SHORT = "a topic made again begins at 0"


def _hunt(bug: str, monkeypatch: pytest.MonkeyPatch, hunted: type[StoreMachine]) -> None:
    where, name, wrong = BUGS[bug]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        run_state_machine_as_test(hunted, settings=HUNT)
    if isinstance(found.value, ExceptionGroup):
        assert found.group_contains(AssertionError)


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.full] * (bug != IN_SHORT)) for bug in BUGS])
def test_the_machine_finds_a_seeded_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _hunt(bug, monkeypatch, StoreMachine)


@pytest.mark.timeout(1_800)  # hundreds of stores on a server take their time
@pytest.mark.parametrize("engine", SHARED_FULL)
def test_the_machine_finds_a_seeded_bug_of_the_rules_over_a_server_too(
    engine: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One: the rules are the same over each engine, and a history there takes as long as fifty in memory."""
    shared_stores.start(engine, request)
    _hunt(IN_SHORT, monkeypatch, machine(engine))
