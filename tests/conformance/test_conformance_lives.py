"""A topic that is deleted and made again: its offsets go on, so that no place and no id ever means two messages."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, message, prepare

from tallystick.core.errors import OffsetOutOfRange
from tallystick.core.ops import Ack, Commit, CommitOffsets, Nack, PartRef, PreparePart, Renew, Send
from tallystick.core.wire import TopicView
from tallystick.store.kv import parts
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import (
    DeleteTopic,
    PromoteDelayed,
    PutTopic,
    TableQuery,
    TrimTo,
    TrimTopics,
)

make_place = engines.make_place
place = engines.place


def filled(place: Place, count: int, topic: str = "orders", queues: int = 1) -> None:
    """A topic that has had some messages, and is deleted."""
    place.do(PutTopic(topic, queues))
    for number in range(count):
        place.do(Send([message(f"old-{number}", topic)]))
    place.do(DeleteTopic(topic))


def view_of(place: Place, topic: str = "orders") -> TopicView:
    found = place.store.topic(topic)
    assert found is not None
    return found


def bounds(place: Place, topic: str = "orders") -> tuple[list[int], list[int], list[int]]:
    view = view_of(place, topic)
    return view.begins, view.starts, view.ends


def test_a_topic_made_again_goes_on_where_the_deleted_one_ended(place: Place) -> None:
    filled(place, 5)
    made = place.do(PutTopic("orders", 1))
    assert (made.begins, made.starts, made.ends) == ([5], [5], [5])
    assert place.do(Send([message("new")])).positions[0].offset == 5
    assert bounds(place) == ([5], [5], [6])
    place.reopen()
    assert bounds(place) == ([5], [5], [6])
    assert [(one.offset, one.value) for one in place.queue("orders", 0)] == [(5, b"new")]


def test_a_place_of_the_deleted_topic_is_refused_and_told_why(place: Place) -> None:
    filled(place, 5)
    place.do(PutTopic("orders", 1))
    place.do(Send([message("new")]))
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match=r"deleted and made again.* before 5"):
            place.store.read("orders", 0, 4, 10, 1_000)
        place.reopen()
    # Whoever had read everything goes on with the first new message.
    assert len(place.store.read("orders", 0, 5, 10, 1_000).chunks) == 1
    place.do(TrimTo("orders", {0: 6}, 10))
    with pytest.raises(OffsetOutOfRange, match=r"which holds 6 to 6$"):
        place.store.read("orders", 0, 5, 10, 1_000)


@pytest.mark.parametrize("way", ["send", "receive", "commit", "part", "delayed commit"])
def test_whoever_makes_the_topic_again_it_goes_on(make_place: MakePlace, way: str) -> None:
    place = make_place(default_queues=1)
    place.do(prepare("t1"))
    place.do(prepare("t2"))
    place.do(PreparePart("p", [message("in-a-part")]))
    place.do(Send([message("old")]))
    place.do(DeleteTopic("orders"))
    if way == "send":
        place.do(Send([message("new")]))
    elif way == "receive":
        assert place.receive() == []
        place.do(Send([message("new")]))
    elif way == "commit":
        place.do(Commit("t1"))
    elif way == "part":
        place.do(Commit("t1", [PartRef("p", 1)]))
    else:
        place.do(Send([message("later", deliver_at=place.now + 10)]))
        place.wait(10)
        place.sweep(PromoteDelayed(10))
    assert bounds(place)[:2] == ([1], [1])
    assert [one.offset for one in place.queue("orders", 0)] == list(range(1, view_of(place).ends[0]))
    assert view_of(place).ends[0] > 1


def test_a_dead_letter_topic_made_again_goes_on(make_place: MakePlace) -> None:
    place = make_place(default_queues=1)
    for turn in range(2):
        place.do(Send([message(f"bad-{turn}")]))
        (delivery,) = place.receive()
        place.do(Nack("g", [delivery.receipt], dead=True))
        assert [one.offset for one in place.queue("dlq.g", 0)] == [turn]
        place.do(DeleteTopic("dlq.g"))


def test_over_many_lives_and_restarts_no_offset_is_used_twice(place: Place) -> None:
    used: list[int] = []
    for life in range(5):
        place.do(PutTopic("orders", 1))
        for number in range(life):  # the first life has no message at all
            used.append(place.do(Send([message(f"{life}-{number}")])).positions[0].offset)
        if life % 2:
            place.reopen()
        place.do(DeleteTopic("orders"))
        if life % 2 == 0:
            place.reopen()
    assert used == list(range(10))


def test_queues_that_only_an_earlier_life_had_go_on_as_well(place: Place) -> None:
    place.do(PutTopic("orders", 3))
    for _ in range(6):
        place.do(Send([message("old")]))
    place.do(DeleteTopic("orders"))
    assert place.do(PutTopic("orders", 1)).begins == [2]
    place.do(Send([message("new")]))
    place.do(DeleteTopic("orders"))
    place.reopen()
    assert place.do(PutTopic("orders", 2)).begins == [3, 2]
    place.reopen()
    grown = place.do(PutTopic("orders", 4))
    assert (grown.begins, grown.starts, grown.ends) == ([3, 2, 2, 0], [3, 2, 2, 0], [3, 2, 2, 0])
    places = [place.do(Send([message("new")])).positions[0] for _ in range(4)]
    assert {(at.queue, at.offset) for at in places} == {(0, 3), (1, 2), (2, 2), (3, 0)}


def test_made_deleted_and_made_again_in_one_unit(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    first, _, second, _, third = place.write(
        Send([message("a")]), DeleteTopic("orders"), Send([message("b")]), DeleteTopic("orders"), PutTopic("orders", 1)
    )
    assert first is not None
    assert second is not None
    assert [first.positions[0].offset, second.positions[0].offset, third.ends[0]] == [0, 1, 2]
    place.reopen()
    assert bounds(place) == ([2], [2], [2])


def test_trims_and_retention_count_from_where_the_topic_began(place: Place) -> None:
    filled(place, 5)
    place.do(PutTopic("orders", 1, 1_000))
    assert place.refused(TrimTo("orders", {0: 6}, 10)).error == "invalid_request"
    place.do(TrimTo("orders", {0: 3}, 10))
    assert bounds(place) == ([5], [5], [5])
    place.do(Send([message("a"), message("b")]))
    place.do(TrimTo("orders", {0: 6}, 10))
    assert bounds(place) == ([5], [6], [7])
    place.wait(2_000)
    place.sweep(TrimTopics(10))
    assert bounds(place) == ([5], [7], [7])
    place.reopen()
    assert bounds(place) == ([5], [7], [7])


def test_times_are_looked_up_in_the_new_life_only(place: Place) -> None:
    filled(place, 5)
    place.do(PutTopic("orders", 1))
    assert place.store.offsets_at("orders", 0) == [5]
    place.wait(10)
    place.do(Send([message("a")]))
    place.wait(10)
    place.do(Send([message("b")]))
    assert [place.store.offsets_at("orders", place.now - back)[0] for back in (100, 10, 9, 0)] == [5, 5, 6, 6]
    assert place.store.offsets_at("orders", place.now + 1) == [7]


def test_no_two_lives_have_one_time_of_creation(place: Place) -> None:
    """Readers tell lives apart by it: in one millisecond, and also when the clock was set back."""
    created = []
    for step in (0, 0, 10, -1_000):
        place.now += step
        place.do(PutTopic("orders", 1))
        place.do(Send([message("a")]))
        created.append(view_of(place).created_at)
        place.do(DeleteTopic("orders"))
    assert created == sorted(set(created))


# --- groups --------------------------------------------------------------------------------------------------------


def test_receipts_of_the_deleted_topic_hold_nothing(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    place.do(Send([message("old")]))
    (old,) = place.receive()
    place.do(DeleteTopic("orders"))
    place.do(PutTopic("orders", 1))
    place.do(Send([message("new")]))
    (new,) = place.receive()
    assert (old.message.offset, new.message.offset) == (0, 1)
    for op in (Ack("g", [old.receipt]), Nack("g", [old.receipt]), Renew("g", [old.receipt], 1_000)):
        assert place.refused(op).error == "stale_lease"
    assert place.store.counts().leased == 1
    place.do(Ack("g", [new.receipt]))
    assert place.store.groups("g")[0].lag == 0


def test_a_group_that_had_begun_misses_nothing_of_the_new_topic(place: Place) -> None:
    """`latest` is where a group begins that has no place; one that had a place has it still."""
    place.do(PutTopic("orders", 2))
    place.do(Send([message("before")]))
    assert place.receive(start="latest") == []
    place.do(DeleteTopic("orders"))
    place.reopen()
    place.do(Send([message("new-1"), message("new-2")]))
    assert sorted(one.message.value for one in place.receive(start="latest")) == [b"new-1", b"new-2"]
    assert place.receive("other", start="latest") == []


def test_a_group_shows_its_lag_from_where_the_topic_begins(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    place.do(Send([message("a"), message("b"), message("c")]))
    place.receive(max=1)
    place.do(CommitOffsets("by-offset", "orders", {0: 2}))
    place.do(DeleteTopic("orders"))
    assert place.store.groups() == []
    place.do(PutTopic("orders", 1))
    place.do(Send([message("d")]))
    place.reopen()
    found = {view.group: view for view in place.store.groups()}
    assert {(name, view.lag, view.leased, view.queues[0].offset) for name, view in found.items()} == {
        ("g", 1, 0, 3),
        ("by-offset", 1, 0, 3),
    }
    rows = place.store.page(TableQuery("offsets", 100)).columns
    assert (rows["start"], rows["end"], rows["lag"]) == ([3, 3], [4, 4], [1, 1])


def test_a_stored_offset_goes_on_over_the_lives(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    place.do(Send([message("a"), message("b")]))
    place.do(CommitOffsets("r", "orders", {0: 2}, {0: 0}))
    place.do(DeleteTopic("orders"))
    place.do(PutTopic("orders", 1))
    place.do(Send([message("c")]))
    # One that is late with what it had read of the deleted topic moves nothing.
    place.do(CommitOffsets("r", "orders", {0: 1}))
    assert place.store.stored_offsets("r", "orders").queues[0].offset == 2
    place.do(CommitOffsets("r", "orders", {0: 3}, {0: 2}))
    assert place.refused(CommitOffsets("r", "orders", {0: 3}, {0: 2})).error == "offset_moved"
    assert place.store.stored_offsets("r", "orders").lag == 0


def test_a_new_group_commits_from_where_it_was_told_to_begin(place: Place) -> None:
    """What `stored_offsets` tells is what `expected` must be, also where the queue does not begin at 0."""
    filled(place, 5)
    place.do(PutTopic("orders", 1))
    place.do(Send([message("new")]))
    told = place.store.stored_offsets("r", "orders").queues[0].offset
    place.do(CommitOffsets("r", "orders", {0: 6}, {0: told}))
    assert place.refused(CommitOffsets("r", "orders", {0: 6}, {0: told})).error == "offset_moved"


# --- what outlives a topic -----------------------------------------------------------------------------------------


def test_delayed_messages_of_the_deleted_topic_do_not_come_into_the_new_one(place: Place) -> None:
    place.do(Send([message("old", deliver_at=place.now + 10)]))
    place.do(DeleteTopic("orders"))
    place.do(Send([message("new", deliver_at=place.now + 10)]))
    place.wait(10)
    assert place.sweep(PromoteDelayed(10)).done == 2
    assert place.values() == ["new"]


def test_a_large_part_goes_with_the_topic_it_was_laid_down_in(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SMALL_BYTES", 0)
    place.do(PutTopic("orders", 1))
    place.do(PreparePart("p", [message("large")]))
    place.do(DeleteTopic("orders"))
    place.do(PutTopic("orders", 1))
    assert place.refused(Commit("t1", [PartRef("p", 1)])).error == "part_unavailable"
    assert place.values() == []


def test_names_of_deleted_topics_are_not_kept_in_memory(place: Place) -> None:
    def held(store: KvStore) -> int:
        catalog = store._catalog
        known = (catalog.topics, catalog.topics_by_id, catalog.starts, catalog.ends, store._visible.topics())
        turns = (catalog.round_robin, catalog.receive_turns, catalog.visible_low)
        return sum(len(one) for one in (*known, *turns))

    before = held(place.store)
    for number in range(20):
        filled(place, 2, f"topic-{number}")
        filled(place, 2, f"topic-{number}", queues=2)
        place.receive("g", f"topic-{number}")
        place.do(DeleteTopic(f"topic-{number}"))
    assert held(place.store) == before
    place.reopen()
    assert held(place.store) == before
    assert place.do(PutTopic("topic-7", 2)).begins == [3, 1]
