"""Many operations in one unit are worth the same operations one by one; a unit is all or nothing."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from engines import DURABLE_FIRST, Place, message, open_place, prepare
from hypothesis import given, settings
from hypothesis import strategies as st

import shared_stores
from tallystick.core.backoff import Backoff
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    Commit,
    CommitOffsets,
    Nack,
    PartRef,
    PreparePart,
    Renew,
    Rollback,
    Send,
)
from tallystick.core.transaction import CheckDefaults
from tallystick.store.kv import leases
from tallystick.store.protocol import (
    ClaimChecks,
    DeleteTopic,
    ExpireParts,
    ExpireTombstones,
    FailChecks,
    OperatorResolve,
    ParkOld,
    Progress,
    PromoteDelayed,
    PutTopic,
    Receive,
    Resume,
    StoreOp,
    StoreSettings,
    TrimTopics,
)

SETTINGS = StoreSettings(
    checks=CheckDefaults(100, 2, Backoff(100, 400, jitter=0.0), max_age_ms=1_000),
    redelivery=Backoff(100, 400, jitter=0.0),
    default_queues=2,
    max_attempts=2,
    dedup_retention_ms=500,
    part_ttl_ms=300,
)

gid = st.sampled_from(["a", "b", "c", "d"])
topic = st.sampled_from(["x", "y"])
name = st.sampled_from(["p", "q"])
delay = st.sampled_from([0, 0, 150])
receipts = st.lists(
    st.builds(lambda at, lease: f"stock/0/{at}/{lease}", st.integers(0, 3), st.integers(1, 6)), max_size=3
)

operation: st.SearchStrategy[StoreOp] = st.one_of(
    st.builds(
        lambda known, where, end: prepare(known, where, check=Check(after_ms=50, on_exhausted=end)),
        gid,
        topic,
        st.sampled_from(["park", "rollback"]),
    ),
    st.builds(Commit, gid),
    st.builds(lambda known, part, count: Commit(known, [PartRef(part, count)]), gid, name, st.integers(1, 2)),
    st.builds(Rollback, gid, st.lists(name, max_size=1)),
    st.builds(OperatorResolve, gid, st.sampled_from(["committed", "rolled_back"])),
    st.builds(
        lambda known, where, key, wait: Send([message("s", topic=where, key=key, deliver_at=10**12 * 2 * wait)], known),
        st.none() | gid,
        topic,
        st.sampled_from([None, "k1", "k2"]),
        st.integers(0, 1),
    ),
    st.builds(lambda part, index, text: PreparePart(part, [message(text)], index), name, st.integers(0, 1), topic),
    st.builds(lambda known, said: AnswerChecks({known: said}), gid, st.sampled_from(["committed", "unknown"])),
    st.builds(lambda known, counted: FailChecks({known: "x"}, counted=counted), gid, st.booleans()),
    st.builds(Resume, gid),
    st.builds(ClaimChecks, st.just([1]), st.integers(1, 3), st.just(70)),
    st.builds(Receive, st.just("g"), st.just("stock"), st.integers(1, 3), st.sampled_from([10, 1_000])),
    st.builds(Ack, st.just("g"), receipts),
    st.builds(Nack, st.just("g"), receipts, delay, st.booleans()),
    st.builds(Renew, st.just("g"), receipts, st.just(500)),
    st.builds(lambda at: CommitOffsets("g", "stock", {0: at}, {0: 0}), st.integers(0, 5)),
    st.builds(PutTopic, topic, st.integers(1, 3)),
    st.builds(DeleteTopic, topic),
    st.sampled_from([PromoteDelayed(99), ExpireParts(99), ExpireTombstones(99), TrimTopics(99), ParkOld([1], 99)]),
)
histories = st.lists(st.tuples(st.lists(operation, min_size=1, max_size=12), st.sampled_from([0, 60, 400])), max_size=5)


def everything(place: Place) -> dict[str, Any]:
    """All that can be seen of a store."""
    store = place.store
    return {
        "topics": sorted(store.topics(), key=lambda view: view.name),
        "messages": {view.name: place.messages(view.name) for view in store.topics()},
        "transactions": sorted(store.scan(None, None, None, 1_000)[0], key=lambda view: view.gid),
        "counts": store.counts(),
        "groups": store.groups(),
        "totals": dict(+place.totals),
        "events": place.take_made().events,
    }


def comparable(result: Any) -> Any:
    """How many steps a sweep took, and when it is worth another, may depend on what was written together."""
    return "swept" if isinstance(result, Progress) else result


def play(engine: str, history: list[tuple[list[StoreOp], int]], together: bool) -> tuple[list[Any], dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tallystick-") as directory, pytest.MonkeyPatch.context() as patch:
        numbers = itertools.count(1)
        patch.setattr(leases, "new_lease_id", lambda: next(numbers))
        place = open_place(engine, Path(directory), SETTINGS)
        try:
            place.do(PutTopic("stock", 1))
            place.do(Send([message(str(number), topic="stock") for number in range(5)]))
            results: list[Any] = []
            for ops, wait in history:
                units = [ops] if together else [[op] for op in ops]
                for unit in units:
                    results += map(comparable, place.write(*unit))
                place.wait(wait)
            before = everything(place)
            place.reopen()
            after = everything(place)
            assert {**before, "events": []} == after, "the store forgot something when it was reopened"
            return results, before
        finally:
            place.store.close()


@pytest.mark.parametrize("engine", DURABLE_FIRST)
def test_one_unit_is_worth_its_operations_one_by_one(engine: str, request: pytest.FixtureRequest) -> None:
    shared_stores.start(engine, request)

    @settings(max_examples=400 if engine == "memory" else 60, derandomize=True, deadline=None)
    @given(histories)
    def compare(history: list[tuple[list[StoreOp], int]]) -> None:
        assert play(engine, history, together=True) == play(engine, history, together=False)

    compare()
