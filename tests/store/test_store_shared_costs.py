"""What an operation costs on an engine that is far away, in round trips: whatever the number of what it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fenced_memory import FencedMemory

from tallystick.core.backoff import Backoff
from tallystick.core.calls import CallResult, OutgoingCall
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    Commit,
    CommitBatch,
    CommitOffsets,
    Nack,
    OpResult,
    Piece,
    Prepare,
    PrepareColumns,
    PreparePart,
    Renew,
    Rollback,
    Send,
)
from tallystick.core.token_records import TokenRecord
from tallystick.store.kv.batch import FORESEEN_AT_ONCE
from tallystick.store.protocol import (
    Audited,
    AuditQuery,
    ClaimCalls,
    ClaimChecks,
    Claimed,
    ClaimedCalls,
    ExpireAudit,
    ExpireParts,
    ExpireTombstones,
    FailChecks,
    FinishCalls,
    Guarded,
    HurryAll,
    OperatorResolve,
    ParkOld,
    Progress,
    PromoteDelayed,
    PutToken,
    Receive,
    Received,
    StoreOp,
    StoreSettings,
    TableQuery,
    TrimTopics,
)
from tallystick.store.shared.opening import SharedStore

NOW = 1_700_000_000_000
COUNT = 500
# One for each piece that is foreseen together, the pages of the scan, and the write.
MOST = COUNT // FORESEEN_AT_ONCE + 1 + 6


class Trips:
    def __init__(self) -> None:
        self.server = FencedMemory()
        self.now = NOW
        self._open()

    def _open(self) -> None:
        settings = StoreSettings(redelivery=Backoff(1_000, 1_000, jitter=0.0), part_ttl_ms=1_000)
        self.store = SharedStore(self.server, self.server.claim("test").epoch, settings)

    def take_over(self) -> None:
        """By a broker that knows nothing but what is stored."""
        self._open()

    def of(self, *ops: StoreOp) -> tuple[int, object]:
        """Round trips of one unit, and its last result."""
        before = self.server.trips
        result = self.store.write(ops, self.now).results[-1]
        return self.server.trips - before, result

    def of_look(self, look: Callable[[SharedStore], object]) -> int:
        before = self.server.trips
        look(self.store)
        return self.server.trips - before

    def channel(self, via: str) -> int:
        (found,) = [one.id for one in self.store.channels() if one.via == via]
        return found


@pytest.fixture
def trips() -> Trips:
    return Trips()


Making = Callable[[Trips], list[StoreOp]]
BODY = [OutgoingMessage("orders", b"x")]


def _numbers(name: str) -> list[str]:
    return [f"{name}{number}" for number in range(COUNT)]


def _prepared(trips: Trips) -> list[str]:
    trips.of(*(Prepare(gid, "shop", BODY, Check(after_ms=10)) for gid in _numbers("t")))
    return _numbers("t")


def _asked(trips: Trips) -> list[str]:
    """Of which each has been claimed for a check."""
    gids = _prepared(trips)
    trips.now += 60_000
    trips.of(ClaimChecks([trips.channel("group")], COUNT, 10_000))
    return gids


def _lent(trips: Trips) -> list[str]:
    trips.of(*(Send([OutgoingMessage("orders", b"x", key=str(number))]) for number in range(COUNT)))
    _, received = trips.of(Receive("g", "orders", COUNT, 10**6))
    assert isinstance(received, Received)
    assert len(received.deliveries) == COUNT
    return [one.receipt for one in received.deliveries]


def _offsets(trips: Trips, expected: dict[int, int] | None) -> list[StoreOp]:
    trips.of(Send(BODY))
    trips.of(*(CommitOffsets(group, "orders", {0: 0}) for group in _numbers("g")[1:]))
    return [CommitOffsets(group, "orders", {0: 0, 1: 0}, expected) for group in _numbers("g")]


def _columns(trips: Trips) -> list[StoreOp]:
    trips.of(Send(BODY))
    piece = Piece("orders", 4, 0, 1, b"columns", b"values")
    return [PrepareColumns(part, 0, None, 1, 0, [piece], []) for part in _numbers("p")]


KINDS: dict[str, Making] = {
    "prepare": lambda _: [Prepare(gid, "shop", BODY) for gid in _numbers("t")],
    "commit": lambda trips: [Commit(gid) for gid in _prepared(trips)],
    "commit once asked": lambda trips: [Commit(gid) for gid in _asked(trips)],
    "rollback": lambda trips: [Rollback(gid) for gid in _prepared(trips)],
    "rollback of what is unknown": lambda _: [Rollback(gid) for gid in _numbers("t")],
    "send": lambda _: [Send([OutgoingMessage(gid, b"x")], gid) for gid in _numbers("t")],
    "part": lambda _: [PreparePart(part, BODY) for part in _numbers("p")],
    "columns": _columns,
    "batch": lambda _: [CommitBatch(app, 1, f"gid-{app}") for app in _numbers("a")],
    "ack": lambda trips: [Ack("g", [receipt]) for receipt in _lent(trips)],
    "nack": lambda trips: [Nack("g", [receipt]) for receipt in _lent(trips)],
    "renew": lambda trips: [Renew("g", [receipt], 1_000) for receipt in _lent(trips)],
    "offsets": lambda trips: _offsets(trips, None),
    "offsets that are expected": lambda trips: _offsets(trips, {0: 0, 1: 0}),
    "answer committed": lambda trips: [AnswerChecks({gid: "committed"}) for gid in _prepared(trips)],
    "answer rolled back": lambda trips: [AnswerChecks({gid: "rolled_back"}) for gid in _asked(trips)],
    "answer unknown": lambda trips: [AnswerChecks({gid: "unknown"}) for gid in _asked(trips)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_of_many_operations_of_one_kind(trips: Trips, kind: str) -> None:
    ops = KINDS[kind](trips)
    assert len(ops) == COUNT
    trips.take_over()
    before = trips.server.trips
    results = trips.store.write(ops, trips.now).results
    assert trips.server.trips - before <= 3
    assert not [result for result in results if isinstance(result, OpResult) and result.error]


def test_a_round_of_checks(trips: Trips) -> None:
    body = [OutgoingMessage("orders", b"x")]
    trips.of(*(Prepare(f"t{number}", "shop", body, Check(after_ms=10)) for number in range(COUNT)))
    for _ in range(2):
        trips.take_over()
        trips.now += 60_000
        spent, claimed = trips.of(ClaimChecks([trips.channel("group")], COUNT, 10_000))
        assert isinstance(claimed, Claimed)
        assert len(claimed.claims) == COUNT
        assert spent <= MOST
        gids = [claim.request.gid for claim in claimed.claims]
        trips.take_over()
        assert trips.of(FailChecks(dict.fromkeys(gids, "no answer")))[0] <= 3
    trips.take_over()
    trips.now += 10**11
    assert trips.of(ParkOld([trips.channel("group")], COUNT))[0] <= MOST


def test_a_round_of_calls(trips: Trips) -> None:
    calls = [OutgoingCall("http://a:1/x", b"body")]
    trips.of(*(Send([], f"t{number}", calls) for number in range(COUNT)))
    for _ in range(2):
        trips.take_over()
        spent, claimed = trips.of(ClaimCalls([trips.channel("call")], COUNT, 10**9, 1_000))
        assert isinstance(claimed, ClaimedCalls)
        assert len(claimed.claims) == COUNT
        assert spent <= 2 * MOST  # those whose lease is over are taken back first
        trips.now += 60_000
        trips.take_over()
    done = [CallResult(claim.gid, claim.index, "success") for claim in claimed.claims]
    assert trips.of(FinishCalls(done))[0] <= 3


def test_messages_that_are_lent_again(trips: Trips) -> None:
    trips.of(*(Send([OutgoingMessage("orders", b"x", key=str(number))]) for number in range(COUNT)))
    trips.of(Receive("g", "orders", COUNT, 1_000))
    trips.now += 60_000
    trips.take_over()
    spent, received = trips.of(Receive("g", "orders", COUNT, 1_000))
    assert isinstance(received, Received)
    assert len(received.deliveries) == COUNT
    queues = 4  # whose chunks are read, and their cursors
    assert spent <= MOST + 2 * queues


def test_the_end_of_tombstones_and_parts(trips: Trips) -> None:
    trips.of(*(Rollback(f"t{number}") for number in range(COUNT)))
    trips.of(*(PreparePart(f"p{number}", [OutgoingMessage("orders", b"x")]) for number in range(COUNT)))
    trips.now += 10**10
    trips.take_over()
    assert trips.of(ExpireTombstones(COUNT))[0] <= 6
    assert trips.of(ExpireParts(COUNT))[0] <= MOST
    assert trips.of(Commit("t1"))[0] <= 2


@pytest.mark.parametrize("state", ["prepared", "committed"])
def test_a_list_of_transactions(trips: Trips, state: str) -> None:
    gids = [f"t{number}" for number in range(COUNT)]
    trips.of(*(Prepare(gid, "shop", [OutgoingMessage("orders", b"x")]) for gid in gids))
    if state == "committed":
        trips.of(*(Commit(gid) for gid in gids))
    trips.take_over()
    assert trips.of_look(lambda store: store.scan(state, None, None, COUNT)) <= MOST
    assert trips.of_look(lambda store: store.page(TableQuery("transactions", COUNT, state=state))) <= MOST


def test_half_messages_in_bulk(trips: Trips) -> None:
    trips.of(*(Prepare(f"t{number}", "shop", [OutgoingMessage("orders", b"x")]) for number in range(COUNT)))
    trips.take_over()
    found = trips.store.page(TableQuery("half", COUNT))
    assert len(found.columns["gid"]) == COUNT
    assert trips.of_look(lambda store: store.page(TableQuery("half", COUNT))) <= MOST


def test_a_list_of_calls(trips: Trips) -> None:
    trips.of(*(Send([], f"t{number}", [OutgoingCall("http://a:1/x", b"body")]) for number in range(COUNT)))
    trips.take_over()
    assert trips.of_look(lambda store: store.scan_calls(None, None, COUNT)) <= MOST
    assert trips.of_look(lambda store: store.page(TableQuery("calls", COUNT))) <= MOST


def test_what_waits_long_is_hurried(trips: Trips) -> None:
    body = [OutgoingMessage("orders", b"x")]
    trips.of(*(Prepare(f"t{number}", "shop", body, Check(after_ms=10)) for number in range(COUNT)))
    trips.now += 60_000
    trips.of(ClaimChecks([trips.channel("group")], COUNT, 10_000))
    trips.take_over()
    spent, hurried = trips.of(HurryAll(0, COUNT))
    assert isinstance(hurried, Progress)
    assert hurried.done == COUNT
    assert spent <= 2 * MOST  # found in one walk, and moved in another


def test_who_asks_costs_nothing_more(trips: Trips) -> None:
    body = [OutgoingMessage("orders", b"x")]
    gids = [f"t{number}" for number in range(4 * COUNT)]
    trips.of(*(Prepare(gid, "shop", body, Check(after_ms=10)) for gid in gids))
    spent = []
    for part in range(4):
        some = gids[part * COUNT : (part + 1) * COUNT]
        plain = [OperatorResolve(gid, "committed") for gid in some]
        guarded = [Guarded(op, ("shop",)) for op in plain]
        audited = [Audited(op, "ann", "token", "10.0.0.1", "resolve", "t") for op in guarded]
        trips.take_over()
        spent.append(trips.of(*(plain, guarded, audited, [Commit(gid) for gid in some])[part])[0])
    assert len(set(spent)) == 1, spent
    assert spent[0] <= 3


def test_tokens_are_looked_at_in_memory_and_deeds_in_pages(trips: Trips) -> None:
    for number in range(COUNT):
        record = TokenRecord(f"t{number}", str(number), "digest", (), 1)
        trips.of(Audited(PutToken(record), "ann", "token", "", "create_token", record.name))
    trips.take_over()
    assert trips.of_look(lambda store: store.tokens()) == 0
    assert trips.of_look(lambda store: store.audit(AuditQuery(100))) <= 3
    assert trips.of(ExpireAudit(1_000))[0] == 1


def test_groups_that_are_up_to_date(trips: Trips) -> None:
    groups = [f"g{number}" for number in range(20)]
    trips.of(Send([OutgoingMessage("orders", b"x", key=str(number)) for number in range(100)]))
    for group in groups:
        _, received = trips.of(Receive(group, "orders", 100, 10_000))
        assert isinstance(received, Received)
        trips.of(Ack(group, [one.receipt for one in received.deliveries]))
    trips.take_over()
    for look in (lambda store: store.groups(), lambda store: store.lags(100)):
        assert trips.of_look(look) <= 2 * len(groups) + 2  # two scans each tell its topics
    assert trips.of(Receive("g1", "orders", 100, 10_000))[0] == 2  # what was lent, and where each queue stands


def test_messages_that_came_one_by_one_are_received_many_at_a_time(trips: Trips) -> None:
    for number in range(COUNT):
        trips.of(Send([OutgoingMessage("orders", b"x", key="same")], f"t{number}"))
    trips.take_over()
    spent, received = trips.of(Receive("g", "orders", COUNT, 1_000))
    assert isinstance(received, Received)
    assert len(received.deliveries) == COUNT
    assert spent <= COUNT / 16 + 8


def test_a_sweep_looks_at_a_queue_once_until_its_messages_are_old(trips: Trips) -> None:
    trips.of(*(Send([OutgoingMessage(f"topic-{number}", b"x")]) for number in range(200)))
    trips.take_over()
    sweeps = [trips.of(TrimTopics(1_000)) for _ in range(5)]
    assert [spent for spent, _ in sweeps] == [64, 64, 64, 8, 0]
    trips.now += trips.store.settings.retention_ms + 1
    _, progress = trips.of(TrimTopics(1_000))
    assert progress == Progress(64, more=True)
    for _ in range(4):
        trips.of(TrimTopics(1_000))
    assert all(topic.starts == topic.ends for topic in trips.store.topics())


def test_sweeps_and_claims_of_what_is_not_due_ask_nothing(trips: Trips) -> None:
    def delayed(gid: str, after_ms: int) -> Send:
        return Send([OutgoingMessage("orders", b"x", deliver_at=trips.now + after_ms)], gid)

    trips.of(delayed("later", 50_000), Prepare("t", "shop", BODY, Check(after_ms=50_000)), PreparePart("p", BODY))
    trips.of(Send([], "called", [OutgoingCall("http://a:1/x", b"body")]))
    claims = ClaimChecks([trips.channel("group")], 10, 1_000), ClaimCalls([trips.channel("call")], 10, 10**6, 10**6)
    idle: list[StoreOp] = [PromoteDelayed(10), ExpireParts(10)]
    trips.take_over()
    trips.of(*idle, *claims)
    spent, _ = trips.of(*idle)
    assert spent == 0
    assert trips.of(claims[1])[0] == 0
    # What comes in before all that is known is found at its time.
    trips.of(delayed("sooner", 1_000), Prepare("u", "shop", BODY, Check(after_ms=1_000)))
    trips.of(PreparePart("q", BODY, ttl_ms=500))
    trips.now += 2_000
    assert trips.of(PromoteDelayed(10))[1] == Progress(1, next_at=NOW + 50_000)
    assert trips.of(ExpireParts(10))[1] == Progress(2)
    (_, claimed) = trips.of(claims[0])
    assert isinstance(claimed, Claimed)
    assert [one.request.gid for one in claimed.claims] == ["u"]
