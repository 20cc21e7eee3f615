"""What an operation costs, counted in keys that are read: it depends on what it does, not on how much is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, Commit, Prepare, Rollback, Send
from tallystick.store.kv.engine import Area, Changes
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine
from tallystick.store.protocol import (
    ClaimChecks,
    Claimed,
    ExpireParts,
    ExpireTombstones,
    FailChecks,
    PromoteDelayed,
    PutTopic,
    Receive,
    Received,
    StoreOp,
    StoreSettings,
    TableQuery,
    TrimTopics,
)

NOW = 1_700_000_000_000


class CountingEngine:
    """Counts the keys that are read, one by one or in a scan."""

    remote = False

    def __init__(self) -> None:
        self._kept = MemoryEngine()
        self.read = 0
        self.written = 0

    def get(self, area: Area, key: bytes) -> bytes | None:
        self.read += 1
        return self._kept.get(area, key)

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        self.read += len(keys)
        return self._kept.get_many(area, keys)

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for found in self._kept.scan(area, start, end):
            self.read += 1
            yield found

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for found in self._kept.scan_back(area, start, end):
            self.read += 1
            yield found

    def write(self, changes: Changes) -> None:
        self.written += sum(map(len, changes.keys.values())) + len(changes.ranges)
        self._kept.write(changes)

    def close(self) -> None:
        """Nothing is held."""


class Costs:
    def __init__(self) -> None:
        self.engine = CountingEngine()
        self.store = KvStore("store", lambda: self.engine, StoreSettings())
        self.now = NOW

    def write(self, *ops: StoreOp) -> list[object]:
        return list(self.store.write(ops, self.now).results)

    def of(self, *ops: StoreOp) -> tuple[int, int, list[object]]:
        """Keys read and written by one unit, and its results."""
        read, written = self.engine.read, self.engine.written
        results = self.write(*ops)
        return self.engine.read - read, self.engine.written - written, results


def prepare(gid: str, after_ms: int) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("orders", gid.encode())], Check(after_ms=after_ms))


def pending(costs: Costs, count: int) -> None:
    """Transactions that are not due for an hour, some resolved meanwhile, and 100 that are due in a second."""
    for start in range(0, count, 1_000):
        gids = [f"later-{number}" for number in range(start, min(start + 1_000, count))]
        costs.write(*[prepare(gid, 3_600_000) for gid in gids])
    costs.write(*[prepare(f"quick-{number}", 900) for number in range(count)])
    costs.write(*[Commit(f"quick-{number}") for number in range(count)])
    costs.write(*[prepare(f"due-{number}", 1_000) for number in range(100)])
    costs.now += 1_000


@pytest.fixture(scope="module")
def rounds() -> dict[int, list[tuple[int, int]]]:
    """Keys read and written by three rounds of checks (claim, no answer; again; answered), by number of pending."""
    found = {}
    for count in (200, 20_000):
        costs = Costs()
        pending(costs, count)
        found[count] = [check_round(costs, turn) for turn in range(3)]
    return found


def check_round(costs: Costs, turn: int) -> tuple[int, int]:
    (channel,) = [one.id for one in costs.store.channels()]
    read, written, results = costs.of(ClaimChecks([channel], 1_000, 10_000))
    claimed = results[0]
    assert isinstance(claimed, Claimed)
    gids = [claim.request.gid for claim in claimed.claims]
    assert sorted(gids) == sorted(f"due-{number}" for number in range(100))
    end = AnswerChecks(dict.fromkeys(gids, "committed")) if turn == 2 else FailChecks(dict.fromkeys(gids, "no answer"))
    more = costs.of(end)
    costs.now += 30_000
    return read + more[0], written + more[1]


def test_a_round_of_checks_costs_what_is_due(rounds: dict[int, list[tuple[int, int]]]) -> None:
    for few, many in zip(rounds[200], rounds[20_000], strict=True):
        assert many == few
    for read, written in rounds[20_000]:
        assert read <= 100 * 8
        assert written <= 100 * 14


def test_a_round_with_nothing_due_costs_next_to_nothing() -> None:
    costs = Costs()
    pending(costs, 20_000)
    (channel,) = [one.id for one in costs.store.channels()]
    costs.write(ClaimChecks([channel], 1_000, 10_000))
    read, written, _ = costs.of(ClaimChecks([channel], 1_000, 10_000))
    assert read <= 3
    assert written == 0, "an idle broker leaves its disk alone"


def test_the_age_of_the_oldest_costs_next_to_nothing() -> None:
    costs = Costs()
    pending(costs, 20_000)
    before = costs.engine.read
    assert costs.store.counts().oldest_pending_at is not None
    assert costs.engine.read - before <= 5


@pytest.mark.parametrize("stored", [100, 10_000])
def test_prepare_and_commit_cost_the_same_however_much_is_stored(stored: int) -> None:
    costs = Costs()
    for start in range(0, stored, 1_000):
        costs.write(*[Send([OutgoingMessage("orders", b"x")], f"s{number}") for number in range(start, start + 1_000)])
    costs.write(*[prepare(f"p{number}", 1_000_000) for number in range(stored)])
    read, written, results = costs.of(prepare("t", 10_000))
    assert (read, written, results) == (1, 3, [None])
    read, written, results = costs.of(Commit("t"))
    assert read <= 1
    assert written == 6  # the tombstone, the due entry, the chunk, the end of the queue, the outcome, the counters
    assert results == [None]
    read, written, _ = costs.of(Rollback("p7"))
    assert read <= 1
    assert written == 4


def test_receiving_costs_what_it_returns() -> None:
    found = []
    for stored in (1_000, 20_000):
        costs = Costs()
        costs.write(PutTopic("orders", 1))
        for start in range(0, stored, 100):
            costs.write(Send([OutgoingMessage("orders", str(start).encode())] * 100))
        costs.write(Receive("g", "orders", 500, 3_600_000))
        spent = []
        for _ in range(3):
            read, written, results = costs.of(Receive("g", "orders", 10, 3_600_000))
            received = results[0]
            assert isinstance(received, Received)
            assert len(received.deliveries) == 10
            more = costs.of(Ack("g", [one.receipt for one in received.deliveries]))
            spent.append((read + more[0], written + more[1]))
        found.append(spent)
    assert found[0] == found[1]
    assert max(read for read, _ in found[1]) <= 10 * 4
    assert max(written for _, written in found[1]) <= 10 * 6


def test_sweeps_with_nothing_to_do_cost_next_to_nothing() -> None:
    costs = Costs()
    pending(costs, 20_000)
    later = costs.now + 10**9
    costs.write(*[Send([OutgoingMessage("orders", b"x", deliver_at=later)]) for _ in range(2_000)])
    for op in (PromoteDelayed(1_000), ExpireParts(1_000), ExpireTombstones(1_000), TrimTopics(1_000)):
        read, written, _ = costs.of(op)
        assert read <= 8, op
        assert written == 0, op


def test_a_list_of_what_is_pending_is_read_from_the_line_of_checks_alone() -> None:
    costs = Costs()
    costs.write(*[prepare(f"t{number}", 3_600_000) for number in range(500)])
    before = costs.engine.read
    page = costs.store.page(TableQuery("transactions", 1_000, state="pending"))
    assert len(page.columns["gid"]) == 500
    assert costs.engine.read - before <= 500 + 5  # and the origin, once for some hundreds of them
