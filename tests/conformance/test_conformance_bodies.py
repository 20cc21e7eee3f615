"""Large parts: their messages lie in bodies from the beginning, and a commit only refers to them."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, message

from tallystick.core.errors import OffsetOutOfRange
from tallystick.core.ops import Commit, DropParts, PartRef, PreparePart, Send
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import DeleteTopic, ExpireParts, TrimTo, TrimTopics

make_place = engines.make_place
place = engines.place
PAD = "x" * 1_000


def large(name: str, count: int = 300, index: int = 0, topic: str = "orders", **rest: int) -> PreparePart:
    return PreparePart(
        name, [message(f"{name}-{index}-{one}-{PAD}", topic, key=f"k{one % 7}") for one in range(count)], index, **rest
    )


def bodies_left(store: KvStore) -> int:
    return sum(1 for key, _ in store._engine.scan("log", b"", b"\xff" * 20) if key[4:6] == b"\xff\xff")


def short(values: list[str]) -> list[str]:
    return [value.removesuffix(f"-{PAD}") for value in values]


def test_a_large_part_is_read_like_any_other_messages(place: Place) -> None:
    place.do(Send([message("before", key="k1")]))
    place.do(large("p1"))
    place.do(large("p1", index=1))
    assert place.values() == ["before"]
    place.write(Send([message("just before", key="k1")]), Commit("t1", [PartRef("p1", 600)]))
    place.do(Send([message("after", key="k1")]))
    found = place.messages()
    assert len(found) == 603
    by_sequence = sorted((one for one in found if one.gid == "t1"), key=lambda one: one.sequence)
    assert [one.sequence for one in by_sequence] == list(range(600))
    assert short([one.value.decode() for one in by_sequence]) == [f"p1-{i}-{n}" for i in (0, 1) for n in range(300)]
    assert {one.stored_at for one in by_sequence} == {place.now}
    for queue in range(4):
        assert [one.offset for one in place.queue("orders", queue)] == list(range(len(place.queue("orders", queue))))
    of_one_key = [one.value.decode() for one in found if one.key == "k1"]
    assert short(of_one_key)[:2] == ["before", "just before"]
    assert of_one_key[-1] == "after"
    place.reopen()
    assert [one.value for one in place.messages()] == [one.value for one in found]


def test_a_commit_of_a_large_part_writes_little(place: Place) -> None:
    """The messages themselves are written once, when the part is prepared."""
    place.do(large("p1", 1_000))
    written = []
    write = place.store._engine.write
    place.store._engine.write = lambda changes: (written.append(changes), write(changes))[1]  # type: ignore[method-assign,assignment]
    place.do(Commit("t1", [PartRef("p1", 1_000)]))
    sizes = [len(value or b"") for changes in written for keys in changes.keys.values() for value in keys.values()]
    assert sum(sizes) < 10_000
    assert len(place.messages()) == 1_000


def test_consumers_receive_messages_of_bodies(place: Place) -> None:
    place.do(large("p1"))
    place.do(Commit("t1", [PartRef("p1", 300)]))
    received = []
    while got := place.receive(max=50):
        received += got
    assert sorted(one.message.sequence for one in received) == list(range(300))


def test_a_delayed_message_of_a_large_part_waits_for_its_time(place: Place) -> None:
    part = large("p1")
    part.messages[5].deliver_at = place.now + 1_000
    place.do(part)
    place.do(Commit("t1", [PartRef("p1", 300)]))
    assert len(place.messages()) == 299
    assert 5 not in {one.sequence for one in place.messages()}


def test_a_repeated_large_part_is_known_again(place: Place) -> None:
    place.do(large("p1"))
    place.wait(10)
    assert place.do(large("p1")).duplicate
    other = large("p1")
    other.messages[-1].value = b"other"
    assert place.refused(other).error == "different_content"


@pytest.mark.parametrize("how", ["dropped", "expired"])
def test_the_bodies_of_an_unclaimed_part_go_with_it(place: Place, how: str) -> None:
    place.do(large("p1", ttl_ms=1_000))
    place.do(large("p2"))
    left = bodies_left(place.store)
    if how == "dropped":
        place.do(DropParts(["p1", "unknown"]))
    else:
        place.wait(1_000)
        place.sweep(ExpireParts(100))
    assert bodies_left(place.store) == left / 2
    assert place.refused(Commit("t1", [PartRef("p1", 300)])).error == "part_unavailable"
    place.do(Commit("t2", [PartRef("p2", 300)]))
    assert len(place.messages()) == 300


def test_dropping_a_committed_part_changes_nothing(place: Place) -> None:
    place.do(large("p1"))
    place.do(Commit("t1", [PartRef("p1", 300)]))
    place.do(DropParts(["p1"]))
    assert len(place.messages()) == 300


def test_bodies_are_trimmed_with_age(make_place: MakePlace) -> None:
    place = make_place(retention_ms=1_000)
    for number in range(3):
        place.do(large(f"p{number}"))
        place.do(Commit(f"t{number}", [PartRef(f"p{number}", 300)]))
        place.wait(600)
    while place.sweep(TrimTopics(1)).more:
        pass
    assert {one.gid for one in place.messages()} == {"t2"}
    of_each = bodies_left(place.store)
    place.wait(1_000)
    while place.sweep(TrimTopics(100)).more:
        pass
    assert place.messages() == []
    assert (of_each > 0, bodies_left(place.store)) == (True, 0)


def test_a_deleted_topic_takes_its_bodies_with_it(place: Place) -> None:
    place.do(large("p1"))
    place.do(large("p2"))
    place.do(large("p3", topic="others"))
    place.do(Commit("t1", [PartRef("p1", 300)]))
    place.do(DeleteTopic("orders"))
    refused = place.refused(Commit("t2", [PartRef("p2", 300)]))
    assert refused.error == "part_unavailable"
    assert "deleted" in refused.detail
    place.do(Commit("t3", [PartRef("p3", 300)]))
    assert len(place.messages("others")) == 300
    place.do(DeleteTopic("others"))
    assert bodies_left(place.store) == 0
    place.do(Send([message("new")]))
    assert place.values() == ["new"]


def test_trimming_to_offsets(place: Place) -> None:
    place.do(large("p1", 400))
    place.do(Commit("t1", [PartRef("p1", 400)]))
    place.do(Send([message(f"s{one}", key=f"k{one}") for one in range(100)]))
    before = {(one.queue, one.offset): one.value for one in place.messages()}
    view = place.store.topic("orders")
    assert view is not None
    targets = {queue: view.ends[queue] // 2 for queue in range(view.queues)}
    while place.sweep(TrimTo("orders", targets, 1)).more:
        pass
    expected = {where: value for where, value in before.items() if where[1] >= targets[where[0]]}
    assert {(one.queue, one.offset): one.value for one in place.messages()} == expected
    place.reopen()
    assert {(one.queue, one.offset): one.value for one in place.messages()} == expected
    queue = max(targets, key=lambda one: targets[one])
    with pytest.raises(OffsetOutOfRange):
        place.store.read("orders", queue, targets[queue] - 1, 10, 1_000)
    place.sweep(TrimTo("orders", dict.fromkeys(targets, 0), 100))  # backwards: nothing to do
    assert len(place.messages()) == len(expected)
    everything = {queue: view.ends[queue] for queue in targets}
    while place.sweep(TrimTo("orders", everything, 2)).more:
        pass
    assert place.messages() == []
    assert bodies_left(place.store) == 0


def test_trimming_past_the_end_is_refused(place: Place) -> None:
    place.do(Send([message("a", key="k")]))
    for offsets in ({0: 0, 3: 99}, {99: 0}, {-1: 0}):
        assert place.refused(TrimTo("orders", offsets, 10)).field == "offsets"
    assert place.refused(TrimTo("nothing", {0: 0}, 10)).error == "not_found"
    assert place.values() == ["a"]


def test_the_first_offset_of_a_time(place: Place) -> None:
    times = []
    for number in range(20):
        times.append(place.now)
        if number % 3:
            place.do(Send([message(str(number), key="k")]))
        else:
            place.do(large(f"p{number}", 100))
            place.do(Commit(f"t{number}", [PartRef(f"p{number}", 100)]))
        place.wait(100)
    view = place.store.topic("orders")
    assert view is not None
    for at in [times[0] - 1, *times, *(one + 50 for one in times), place.now + 1]:
        expected = [
            next((one.offset for one in place.queue("orders", queue) if one.stored_at >= at), view.ends[queue])
            for queue in range(view.queues)
        ]
        assert place.store.offsets_at("orders", at) == expected


@pytest.mark.parametrize("end", ["expires", "is dropped", "is committed"])
def test_a_part_that_comes_again_leaves_the_committed_messages_of_its_name_alone(place: Place, end: str) -> None:
    """A repetition of the request that arrives after the commit is enough for that."""
    place.do(large("p1"))
    place.do(Commit("t1", [PartRef("p1", 300)]))
    committed = [(one.gid, one.sequence, one.value) for one in place.messages()]
    place.do(large("p1"))
    if end == "expires":
        place.wait(10**9)
        assert place.sweep(ExpireParts(10)).done == 1
    elif end == "is dropped":
        place.do(DropParts(["p1"]))
    else:
        place.do(Commit("t2", [PartRef("p1", 300)]))
    place.reopen()
    assert [(one.gid, one.sequence, one.value) for one in place.messages() if one.gid == "t1"] == committed
    assert len(place.messages()) == (600 if end == "is committed" else 300)


@pytest.mark.parametrize("end", ["expires", "is dropped", "is prepared only"])
def test_a_part_whose_name_comes_again_leaves_the_committed_messages_alone(make_place: MakePlace, end: str) -> None:
    """A repetition of the request that comes after the commit is enough."""
    place = make_place(part_ttl_ms=1_000)
    place.do(large("p1"))
    place.do(Commit("t1", [PartRef("p1", 300)]))
    before = [one.value for one in place.messages()]
    place.do(large("p1", 100))
    if end == "expires":
        place.wait(1_001)
        place.sweep(ExpireParts(100))
    elif end == "is dropped":
        place.do(DropParts(["p1"]))
    assert [one.value for one in place.messages()] == before
    place.reopen()
    assert [one.value for one in place.messages()] == before
