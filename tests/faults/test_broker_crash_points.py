"""A crash before and after every single write that a broker makes, in one process: fast, so all of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from broker_script import GROUP, TOPIC, Broken, Told, assert_complete, play
from crash_engine import Crash, CrashingEngine

from tallystick.core.errors import error_from_code
from tallystick.core.message import Chunk, StoredMessage, messages_of
from tallystick.core.ops import ClientOp, OpResult
from tallystick.core.wire import Delivery
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import ClaimChecks, Receive, StoreOp, StoreSettings

_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


class StoreLink:
    """The script's way to a store in this process, with the time in hand."""

    def __init__(self, engine: CrashingEngine, clock: list[int]) -> None:
        self.clock = clock
        self.store = KvStore("store", lambda: engine, StoreSettings())

    def _write(self, op: StoreOp) -> Any:
        self.clock[0] += 10
        try:
            (result,) = self.store.write([op], self.clock[0]).results
        except Crash:
            raise Broken from None
        return result

    def do(self, op: ClientOp) -> OpResult:
        result = self._write(op)
        if result is not None and result.error and result.error != "stale_lease":
            raise error_from_code(result.error, result.detail)
        return result or OpResult()

    def receive(self) -> list[Delivery]:
        deliveries: list[Delivery] = self._write(Receive("g", TOPIC, 100, 5)).deliveries
        return deliveries

    def due(self) -> list[str]:
        self.clock[0] += 60_000
        (channel,) = [one.id for one in self.store.channels() if one.name == GROUP]
        return [claim.request.gid for claim in self._write(ClaimChecks([channel], 100, 1_000)).claims]

    def messages(self) -> list[StoredMessage]:
        view, found = self.store.topic(TOPIC), []
        for queue in range(view.queues) if view else ():
            for raw in self.store.read(TOPIC, queue, 0, 10**6, 10**9).chunks:
                found += messages_of(_decode_chunk(raw), TOPIC, queue)
        return found

    def state(self, gid: str) -> str | None:
        view = self.store.transaction(gid)
        return view.state if view else None


def run(engine: CrashingEngine) -> tuple[Told, int]:
    """What the client was told, and how many writes the script took."""
    clock, told = [1_700_000_000_000], Told()
    link = play(told, lambda: StoreLink(engine, clock), lambda: None)
    writes, engine.crash_at = engine.writes, set()
    assert_complete(told, link, link.receive)
    return told, writes


def writes_of_a_quiet_run() -> int:
    told, writes = run(CrashingEngine(after=False))
    assert told.broken == 0
    return writes


def test_a_quiet_run_makes_a_write_for_every_kind_of_operation() -> None:
    assert writes_of_a_quiet_run() > 30


@pytest.mark.fault
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_write_loses_nothing_and_doubles_nothing(after: bool) -> None:
    for crash_at in range(1, writes_of_a_quiet_run() + 1):
        told, _ = run(CrashingEngine(crash_at, after=after))
        assert told.broken == 1, crash_at


@pytest.mark.fault
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crashes_that_follow_each_other_closely(after: bool) -> None:
    for first in range(1, writes_of_a_quiet_run() + 1):
        for apart in (1, 2, 3):
            told, _ = run(CrashingEngine(first, first + apart, first + 2 * apart, after=after))
            assert told.broken >= 1


@pytest.mark.fault
@pytest.mark.parametrize("forgets", [2, 5, 9])
def test_the_checker_finds_a_store_that_forgets_some_of_its_writes(forgets: int) -> None:
    caught = 0
    for crash_at in range(1, writes_of_a_quiet_run() + 1):
        try:
            run(CrashingEngine(crash_at, after=True, forgets=forgets))
        except Exception:  # the checker's own complaint, or the store's: "not found" for what it confirmed
            caught += 1
    assert caught > 10


class OutcomeChanger(KvStore):
    """A store that lets a rollback overwrite a commit."""

    def _carry_out(self, batch: Any, op: Any) -> Any:
        from tallystick.core.ops import Rollback
        from tallystick.store.kv.transactions import resolve

        if isinstance(op, Rollback):
            resolve(batch, op.gid, None, "rolled_back", "producer", [])
            return None
        return super()._carry_out(batch, op)


def test_the_checker_finds_a_store_that_changes_outcomes() -> None:
    engine, clock, told = CrashingEngine(after=False), [1_700_000_000_000], Told()
    link = play(told, lambda: StoreLink(engine, clock), lambda: None)
    link.store = OutcomeChanger("store", lambda: engine, StoreSettings())  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="changed from committed"):
        assert_complete(told, link, link.receive)
