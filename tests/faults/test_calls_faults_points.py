"""A crash before and after every single write that calls cause, in one process: fast, so all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from call_history import Call, CallHistory, body_of, violations
from call_service import Arrival
from crash_engine import Crash, CrashingEngine

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallPolicy, CallResult, OutgoingCall
from tallystick.core.errors import error_from_code
from tallystick.core.ops import AnswerChecks, Check, Commit, OpResult, Prepare, Rollback, Send
from tallystick.store.kv import calls, keys
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import (
    CallClaim,
    ClaimCalls,
    FinishCalls,
    RequeueCalls,
    ResumeCalls,
    StopCalls,
    StoreOp,
    StoreSettings,
    Subscribe,
    Unsubscribe,
)

pytestmark = pytest.mark.fault

SETTINGS = StoreSettings(calls=Backoff(100, 1_000))
STATUS = {"success": 200, "failure": 409, "ongoing": 425, "error": 500, "unreachable": 503}


class World:
    """Senders, a deliverer and services around one store, whose process dies now and then."""

    def __init__(self, engine: CrashingEngine) -> None:
        self.engine, self.now, self.number, self.broken = engine, 1_700_000_000_000, 0, 0
        self.history, self.arrivals = CallHistory(), list[Arrival]()
        self.plan = defaultdict[Call, list[str]](list, {("g", "01"): ["failure", "unreachable", "ongoing"]})
        self.plan["h", "01"] = ["error"]
        self.plan["a", "01"] = ["error"]
        self.store = KvStore("store", lambda: engine, SETTINGS)

    def do(self, op: StoreOp) -> Any:
        self.now += 10
        (result,) = self.store.write([op], self.now).results
        if isinstance(result, OpResult) and result.error:
            raise error_from_code(result.error, result.detail)
        return result

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self) -> list[Callable[[], Any]]:
        plain = CallPolicy()
        return [
            self.does(self.prepare("a", ["01", "02"])),
            self.does(Commit("a"), "a", "ok"),
            self.work,
            self.does(self.prepare("b", ["01", "02"])),
            self.does(Rollback("b"), "b", "failed"),
            self.does(self.send("c", ["01", "02"], CallPolicy(concurrent=True)), "c", "ok"),
            self.does(self.prepare("d", ["01"])),
            self.work,
            self.does(self.prepare("e", ["01", "02"])),
            self.does(AnswerChecks({"e": "committed"}), "e", "ok"),
            self.does(Subscribe("news", "http://one:1/01-01"), again="conflict"),
            self.does(Subscribe("news", "http://two:1/01-02"), again="conflict"),
            self.does(self.send("f", ["01-01", "01-02"], plain, "topic://news"), "f", "ok"),
            self.does(Unsubscribe("news", "http://one:1/01-01"), again="not_found"),
            self.work,
            self.does(self.send("g", ["01", "02"], CallPolicy(retry_ms=200)), "g", "ok"),
            self.does(self.send("h", ["01", "02"], CallPolicy(max_attempts=1)), "h", "ok"),
            self.does(self.send("i", ["01"], plain, delay_ms=10**8), "i", "failed"),
            self.does(StopCalls("i")),
            self.work,
            self.does(ResumeCalls("h")),
            self.work,
        ]

    def does(self, op: StoreOp, gid: str = "", told: Any = "", again: str = "") -> Callable[[], None]:
        """`again` is how a repetition of what was done already is refused."""

        def step() -> None:
            try:
                self.do(op)
            except Exception as error:
                if not again or getattr(error, "code", "") != again:
                    raise
            if gid:
                self.history.told[gid] = told

        return step

    def prepare(self, gid: str, branches: list[str]) -> Prepare:
        self.history.branches[gid] = branches
        return Prepare(gid, "shop", [], Check(after_ms=10**8), calls=outgoing(gid, branches))

    def send(self, gid: str, branches: list[str], options: CallPolicy, url: str = "", delay_ms: int = 0) -> Send:
        self.history.branches[gid] = branches
        if options.concurrent:
            self.history.concurrent.add(gid)
        made = [OutgoingCall(url, b"topic")] if url else outgoing(gid, branches, delay_ms)
        return Send([], gid, calls=made, call_options=options)

    # --- the deliverer -----------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Make every call that is due within the next seconds."""
        for _ in range(8):
            channels = [one.id for one in self.store.channels() if one.via == "call"]
            for claim in self.do(ClaimCalls(channels, 100, 10**9, 5_000)).claims:
                self.make(claim)
            self.now += 500

    def make(self, claim: CallClaim) -> None:
        outcome = self.arrive(claim.gid, claim.call.branch, claim.call.body)
        self.do(FinishCalls([CallResult(claim.gid, claim.index, outcome, "no")]))
        if outcome == "success":
            self.history.saw_done(claim.gid, claim.call.branch, self.number)

    def arrive(self, gid: str, branch: str, body: bytes) -> Any:
        planned = self.plan[gid, branch]
        outcome = planned.pop(0) if planned else "success"
        self.number += 2
        # What a topic's subscribers get is the same for all of them.
        body = body_of(gid, branch) if body == b"topic" else body
        self.arrivals.append(Arrival(self.number - 1, gid, branch, body, 0, self.number, STATUS[outcome]))
        return outcome

    # --- its death ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """As a broker starts: nobody else can hold a call."""
        while True:
            try:
                self.store = KvStore("store", lambda: self.engine, SETTINGS)
                self.do(RequeueCalls(1_000, all=True))
                break
            except Crash:
                self.broken += 1
        for gid in self.history.branches:
            view = self.store.calls(gid)
            for call in view.calls if view else ():
                if call.state == "done":
                    self.history.saw_done(gid, call.branch, self.number)

    def run(self) -> World:
        for number in range(len(self.steps())):
            while True:
                try:
                    self.steps()[number]()
                    break
                except Crash:
                    self.broken += 1
                    self.recover()
        self.history.told["d"] = "failed"
        return self

    def problems(self) -> list[str]:
        found = {gid: self.store.calls(gid) for gid in self.history.branches}
        return violations(
            self.history, self.arrivals, {gid: view.state if view else None for gid, view in found.items()}
        )


def outgoing(gid: str, branches: list[str], delay_ms: int = 0) -> list[OutgoingCall]:
    return [OutgoingCall(f"http://s{branch}:1/", body_of(gid, branch), delay_ms=delay_ms) for branch in branches]


def quiet_run() -> World:
    world = World(CrashingEngine(after=False)).run()
    assert world.broken == 0
    assert world.problems() == []
    return world


def test_a_quiet_run_makes_every_kind_of_call() -> None:
    world = quiet_run()
    assert world.engine.writes > 40
    tried = [(one.gid, one.branch, one.status) for one in world.arrivals]
    assert [one for one in tried if one[0] == "a"] == [("a", "01", 500), ("a", "01", 200), ("a", "02", 200)]
    assert [status for gid, branch, status in tried if (gid, branch) == ("g", "01")] == [409, 503, 425, 200]
    assert len(tried) == len(set(tried)), "nothing was made twice without need"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_write_loses_no_call_and_repeats_none_that_was_done(after: bool) -> None:
    for crash_at in range(1, quiet_run().engine.writes + 1):
        world = World(CrashingEngine(crash_at, after=after)).run()
        assert world.broken == 1, crash_at
        assert world.problems() == [], crash_at


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crashes_that_follow_each_other_closely(after: bool) -> None:
    for first in range(1, quiet_run().engine.writes + 1):
        for apart in (1, 2, 3):
            world = World(CrashingEngine(first, first + apart, first + 2 * apart, after=after)).run()
            assert world.problems() == [], (first, apart)


# --- seeded bugs that the checker must find ---------------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [3, 7, 11])
def test_a_store_that_forgets_some_of_its_writes_is_found(forgets: int) -> None:
    caught = 0
    for crash_at in range(1, quiet_run().engine.writes + 1):
        try:
            caught += bool(World(CrashingEngine(crash_at, after=True, forgets=forgets)).run().problems())
        except Exception:  # the store's own complaint: what it confirmed is not there
            caught += 1
    assert caught > 10


def test_a_store_that_forgets_a_due_entry_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = calls._put_in_line

    def forgetful(batch: Any, gid: str, index: int, progress: Any, at: int, why: bytes) -> None:
        right(batch, gid, index, progress, at, why)
        if why == calls.RETRY:
            batch.delete("index", keys.DUE_CALL.key(progress.channel, at, gid, index))

    monkeypatch.setattr(calls, "_put_in_line", forgetful)
    problems = World(CrashingEngine(after=False)).run().problems()
    assert {"lost: a/01", "unfinished: a is waiting"} <= set(problems)


class Repeating(World):
    def make(self, claim: CallClaim) -> None:
        super().make(claim)
        if claim.call.branch == "02":
            self.arrive(claim.gid, "02", claim.call.body)


class Hasty(World):
    """Makes the second call of a transaction without waiting for the first."""

    def make(self, claim: CallClaim) -> None:
        if (claim.gid, claim.call.branch) == ("a", "01"):
            self.arrive("a", "02", body_of("a", "02"))
        super().make(claim)


class Eager(World):
    """Makes the calls of what is only prepared."""

    def work(self) -> None:
        if "d" in self.history.branches:
            self.arrive("d", "01", body_of("d", "01"))
        super().work()


@pytest.mark.parametrize(
    ("world", "problem"),
    [(Repeating, "again after it was done: a/02"), (Hasty, "out of order: a/02"), (Eager, "ghost: d/01")],
)
def test_a_deliverer_with_a_mistake_is_found(world: type[World], problem: str) -> None:
    assert problem in world(CrashingEngine(after=False)).run().problems()
