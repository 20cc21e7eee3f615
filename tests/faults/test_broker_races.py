"""Requests that race, on a real broker and several connections: one wins, the others are told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.errors import StaleLease, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    ClientOp,
    Commit,
    PartRef,
    Prepare,
    PreparePart,
    Rollback,
    Send,
)

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made


def prepare(gid: str, **rest: object) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("orders", gid.encode())], **rest)  # type: ignore[arg-type]


def visible(client: RawClient, *gids: str) -> Counter[str]:
    return Counter(one.gid for one in client.messages("orders") if one.gid in gids)


def together(broker: BrokerProcess, ops: list[ClientOp], repeat: int = 1) -> list[str]:
    """All at once, each on a connection of its own; `ok`, `duplicate` or the code of the refusal for each."""
    words: list[str] = [""] * len(ops)
    ready = threading.Barrier(len(ops))

    def run(number: int) -> None:
        with RawClient(broker.url) as client:
            client.json("GET", "/healthz")  # the connection is made before the race begins
            ready.wait()
            for _ in range(repeat):
                try:
                    words[number] = "duplicate" if client.do(ops[number]).duplicate else "ok"
                except TallystickError as error:
                    words[number] = error.code

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(ops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return words


def test_the_same_commit_from_many_connections_happens_once(broker: BrokerProcess, client: RawClient) -> None:
    for turn in range(10):
        gid = f"many-{turn}"
        client.do(prepare(gid))
        words = together(broker, [Commit(gid)] * 8)
        assert Counter(words) == {"ok": 1, "duplicate": 7}
        assert visible(client, gid) == {gid: 1}


def send(gid: str) -> Send:
    return Send([OutgoingMessage("orders", gid.encode())], gid)


@pytest.mark.parametrize(("kind", "word"), [(prepare, "prepared"), (send, "committed")])
def test_the_same_first_request_from_many_connections_happens_once(
    broker: BrokerProcess, client: RawClient, kind: Callable[[str], ClientOp], word: str
) -> None:
    gid = f"first-{word}"
    assert Counter(together(broker, [kind(gid)] * 8)) == {"ok": 1, "duplicate": 7}
    view = client.transaction(gid)
    assert view is not None
    assert view.state == word


def test_commit_against_rollback_has_one_winner_and_the_loser_is_told(broker: BrokerProcess, client: RawClient) -> None:
    outcomes = set()
    for turn in range(20):
        gid = f"duel-{turn}"
        client.do(prepare(gid))
        ops: list[ClientOp] = [Commit(gid), Rollback(gid)] * 2
        words = together(broker, ops if turn % 2 else ops[::-1])
        view = client.transaction(gid)
        assert view is not None
        outcomes.add(view.state)
        assert Counter(words) == {"ok": 1, "duplicate": 1, "outcome_conflict": 2}
        assert visible(client, gid) == ({gid: 1} if view.state == "committed" else {})
        late = Rollback(gid) if view.state == "committed" else Commit(gid)
        with pytest.raises(TallystickError, match="cannot become"):
            client.do(late)
    assert outcomes <= {"committed", "rolled_back"}


@pytest.mark.parametrize("said", ["committed", "rolled_back"])
def test_outcomes_against_the_answer_of_a_check(broker: BrokerProcess, client: RawClient, said: str) -> None:
    for turn in range(10):
        gid = f"check-{said}-{turn}"
        client.do(prepare(gid, check=Check(after_ms=0)))
        contrary = Rollback(gid) if said == "committed" else Commit(gid)
        words = together(broker, [contrary, AnswerChecks({gid: said})])  # type: ignore[dict-item]
        view = client.transaction(gid)
        assert view is not None
        assert (words[0] == "ok") == (view.resolved_by == "producer")
        assert words[0] in ("ok", "outcome_conflict")
        assert visible(client, gid) == ({gid: 1} if view.state == "committed" else {})


def test_a_prepare_that_arrives_after_the_outcome_is_refused(broker: BrokerProcess, client: RawClient) -> None:
    client.do(prepare("delayed"))
    client.do(Commit("delayed"))
    client.do(Rollback("never-came"))
    with RawClient(broker.url) as other:
        for gid in ("delayed", "never-came"):
            with pytest.raises(TallystickError) as refused:
                other.do(prepare(gid))
            assert refused.value.code == "already_resolved"
        assert other.do(Commit("delayed")).duplicate
    assert visible(client, "delayed", "never-came") == {"delayed": 1}


def test_prepare_and_outcome_race(broker: BrokerProcess, client: RawClient) -> None:
    for turn in range(10):
        gid = f"overtaken-{turn}"
        words = together(broker, [prepare(gid), Rollback(gid)])
        assert words[1] == "ok"
        assert words[0] in ("ok", "already_resolved")
        view = client.transaction(gid)
        assert view is not None
        assert view.state == "rolled_back"
        assert visible(client, gid) == {}


def test_a_late_commit_of_the_transaction_before_does_not_touch_the_one_after(
    broker: BrokerProcess, client: RawClient
) -> None:
    client.do(prepare("k"))
    client.do(Rollback("k"))
    client.do(prepare("k-1"))
    with RawClient(broker.url) as late:
        with pytest.raises(TallystickError) as refused:
            late.do(Commit("k"))
        assert refused.value.code == "outcome_conflict"
    view = client.transaction("k-1")
    assert view is not None
    assert view.state == "prepared"
    client.do(Commit("k-1"))
    assert visible(client, "k", "k-1") == {"k-1": 1}


def test_two_commits_that_claim_the_same_parts(broker: BrokerProcess, client: RawClient) -> None:
    for turn in range(10):
        part = f"part-{turn}"
        client.do(PreparePart(part, [OutgoingMessage("orders", b"p")]))
        gids = [f"{part}-{number}" for number in range(4)]
        words = together(broker, [Commit(gid, [PartRef(part, 1)]) for gid in gids])
        assert Counter(words) == {"ok": 1, "part_unavailable": 3}
        assert sum(visible(client, *gids).values()) == 1


def test_a_stale_lease_is_refused_after_another_consumer_took_over(broker: BrokerProcess, client: RawClient) -> None:
    client.do(Send([OutgoingMessage("leases", b"work")]))
    (first,) = client.receive("g", "leases", invisible_ms=150)
    with RawClient(broker.url) as other:
        (second,) = other.receive("g", "leases", wait_ms=5_000, invisible_ms=60_000)
        assert (second.message, second.attempt) == (first.message, 2)
        with pytest.raises(StaleLease):
            client.do(Ack("g", [first.receipt]))
        other.do(Ack("g", [second.receipt]))
    assert client.receive("g", "leases") == []


def test_consumers_of_one_group_never_hold_the_same_message(broker: BrokerProcess, client: RawClient) -> None:
    client.do(Send([OutgoingMessage("shared", str(number).encode()) for number in range(400)]))
    taken: list[bytes] = []
    lock = threading.Lock()

    def consume() -> None:
        with RawClient(broker.url) as mine:
            while deliveries := mine.receive("team", "shared", max=7, invisible_ms=60_000):
                with lock:
                    taken.extend(one.message.value for one in deliveries)
                mine.do(Ack("team", [one.receipt for one in deliveries]))

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert Counter(taken) == {str(number).encode(): 1 for number in range(400)}


def test_ordered_consumers_see_each_key_in_order(broker: BrokerProcess, client: RawClient) -> None:
    client.do(Send([OutgoingMessage("ordered", f"{n}".encode(), key=f"k{n % 5}") for n in range(100)]))
    seen: dict[str | None, list[int]] = {}
    held: set[str | None] = set()
    lock = threading.Lock()
    deadline = time.monotonic() + 30

    def consume() -> None:
        with RawClient(broker.url) as mine:
            while sum(map(len, seen.values())) < 100 and time.monotonic() < deadline:
                for one in mine.receive("team", "ordered", max=4, invisible_ms=60_000, ordered=True, wait_ms=100):
                    with lock:
                        assert one.message.key not in held
                        held.add(one.message.key)
                        seen.setdefault(one.message.key, []).append(int(one.message.value))
                        held.discard(one.message.key)
                    mine.do(Ack("team", [one.receipt]))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert seen == {f"k{key}": list(range(key, 100, 5)) for key in range(5)}
