"""Topics, queues, offsets, delayed messages, retention."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, message, prepare

from tallystick.core.errors import NotFound, OffsetOutOfRange
from tallystick.core.limits import Limits
from tallystick.core.ops import Commit, Nack, PartRef, Prepare, PreparePart, Send
from tallystick.store.protocol import DeleteTopic, PromoteDelayed, PutTopic, TrimTopics

make_place = engines.make_place
place = engines.place

HOUR = 3_600_000


def test_a_first_message_makes_its_topic(make_place: MakePlace) -> None:
    place = make_place(default_queues=3, retention_ms=HOUR)
    place.do(Send([message("a")]))
    view = place.store.topic("orders")
    assert view is not None
    assert (view.queues, view.retention_ms, view.created_at) == (3, HOUR, place.now)
    assert sum(view.ends) == 1


def test_a_topic_is_made_and_changed_by_request(place: Place) -> None:
    made = place.do(PutTopic("t", 2, HOUR))
    assert (made.queues, made.retention_ms) == (2, HOUR)
    assert place.do(PutTopic("t")).queues == 2
    grown = place.do(PutTopic("t", 5))
    assert (grown.queues, grown.retention_ms, grown.ends) == (5, HOUR, [0] * 5)
    assert place.do(PutTopic("t", None, 2 * HOUR)).retention_ms == 2 * HOUR


def test_queues_only_grow_and_stay_within_the_limit(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(queues_per_topic=8))
    place.do(PutTopic("t", 4))
    for queues in (3, 0, -1, 9):
        refused = place.refused(PutTopic("t", queues))
        assert (refused.error, refused.field) == ("invalid_request", "queues")
    assert place.refused(PutTopic("new", 9)).field == "queues"
    assert place.store.topic("new") is None


def test_the_number_of_topics_is_limited_and_a_refusal_makes_none(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(topics=2))
    place.do(PutTopic("one"))
    both = [message("a", topic="two"), message("b", topic="three")]
    assert place.refused(Send(both)).error == "too_large"
    assert place.refused(PreparePart("p", both)).error == "too_large"
    assert [view.name for view in place.store.topics()] == ["one"]
    place.do(Send(both[:1]))
    assert place.refused(PutTopic("three")).error == "too_large"
    place.do(PutTopic("two", 9))


def test_the_limit_of_topics_never_loses_what_was_accepted(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(topics=2))
    place.do(PutTopic("orders"))
    place.do(prepare("t1"))
    place.do(DeleteTopic("orders"))
    place.do(PutTopic("x"))
    place.do(PutTopic("y"))
    place.do(Commit("t1"))
    assert place.values() == ["t1"]
    (delivery,) = place.receive()
    place.do(Nack("g", [delivery.receipt], dead=True))
    assert place.values("dlq.g") == ["t1"], "a dead letter must not be lost for want of a topic"


def test_a_key_has_one_queue_and_messages_without_a_key_take_turns(place: Place) -> None:
    place.do(PutTopic("orders", 4))
    homes: dict[str, set[int]] = {}
    for turn in range(3):
        for number in range(20):
            (at,) = place.do(Send([message("v", key=f"key-{number}")])).positions
            homes.setdefault(f"key-{number}", set()).add(at.queue)
        if turn == 1:
            place.reopen()
    assert all(len(queues) == 1 for queues in homes.values())
    assert len(set().union(*homes.values())) == 4
    unkeyed = [place.do(Send([message("v")])).positions[0].queue for _ in range(8)]
    assert sorted(unkeyed) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_offsets_are_dense_and_in_the_order_of_the_writes(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for number in range(30):
        place.write(*[Send([message(f"{number}-{one}", key="k")]) for one in range(1 + number % 3)])
    found = place.queue("orders", 0)
    assert [one.offset for one in found] == list(range(len(found)))
    assert [one.value.decode() for one in found] == [f"{n}-{one}" for n in range(30) for one in range(1 + n % 3)]


def test_a_message_comes_back_with_all_that_was_given(place: Place) -> None:
    sent = message("v", key="k", headers={"a": "1", "ü": "ö"}, tag="red", born_at=123)
    place.do(Send([sent, message("plain", key="k")], gid="s1"))
    first, second = place.messages()
    assert (first.value, first.key, first.headers, first.tag) == (b"v", "k", {"a": "1", "ü": "ö"}, "red")
    assert (first.gid, first.sequence, first.born_at, first.stored_at) == ("s1", 0, 123, place.now)
    assert (second.headers, second.tag, second.sequence, second.born_at) == (None, None, 1, place.now)


def test_large_and_many_messages_in_one_unit_become_several_chunks(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    large = [message("x" * 100_000) for _ in range(7)]
    small = [message(str(number)) for number in range(1_200)]
    place.write(Send(large), Send(small))
    found = place.queue("orders", 0)
    assert [one.offset for one in found] == list(range(1_207))
    assert [one.value for one in found] == [one.value for one in [*large, *small]]


def test_reads_are_bounded_by_messages_and_bytes_and_go_on_where_they_stopped(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for number in range(20):
        place.do(Send([message(f"{number:04}" * 25)]))
    piece = place.store.read("orders", 0, 0, 3, 10**9)
    assert (len(piece.chunks), piece.start, piece.next, piece.end) == (3, 0, 3, 20)
    piece = place.store.read("orders", 0, 5, 10**9, 300)
    assert len(piece.chunks) < 3
    assert piece.next == 5 + len(piece.chunks)
    piece = place.store.read("orders", 0, 7, 10**9, 1)
    assert len(piece.chunks) == 1, "a message larger than the limit would otherwise never be read"
    assert place.store.read("orders", 0, 20, 10, 10).chunks == []


def test_reads_outside_of_what_is_kept_are_refused(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    place.do(Send([message("a")]))
    for offset in (2, 2**62):
        with pytest.raises(OffsetOutOfRange):
            place.store.read("orders", 0, offset, 1, 1)
    for topic, queue in (("orders", 1), ("orders", -1), ("nothing", 0)):
        with pytest.raises(NotFound):
            place.store.read(topic, queue, 0, 1, 1)


def test_retention_removes_old_messages_and_moves_the_start(place: Place) -> None:
    place.do(PutTopic("orders", 1, HOUR))
    for number in range(4):
        place.do(Send([message(str(number))]))
        place.wait(HOUR // 4)
    assert place.sweep(TrimTopics(100)).done == 0
    place.wait(HOUR // 2)
    assert place.sweep(TrimTopics(100)).done == 2
    view = place.store.topic("orders")
    assert view is not None
    assert (view.starts, view.ends) == ([2], [4])
    assert place.values() == ["2", "3"]
    with pytest.raises(OffsetOutOfRange):
        place.store.read("orders", 0, 1, 1, 1)
    assert [one.message.offset for one in place.receive()] == [2, 3]
    place.wait(HOUR)
    place.sweep(TrimTopics(100))
    place.reopen()
    assert place.values() == []
    assert place.do(Send([message("next")])).positions[0].offset == 4


def test_retention_works_in_pieces(place: Place) -> None:
    place.do(PutTopic("orders", 2, 0))
    for number in range(10):
        place.do(Send([message(str(number))]))
    place.wait(1)
    done = []
    while not done or done[-1].more:
        done.append(place.sweep(TrimTopics(3)))
    assert sum(one.done for one in done) == 10
    assert place.values() == []


def test_a_deleted_topic_comes_back_empty(place: Place) -> None:
    place.do(PutTopic("orders", 2))
    place.do(Send([message("a"), message("b")]))
    assert len(place.receive()) == 2
    place.do(DeleteTopic("orders"))
    assert place.store.topic("orders") is None
    assert place.store.counts().leased == 0
    assert place.refused(DeleteTopic("orders")).error == "not_found"
    place.do(Send([message("new")]))
    assert place.values() == ["new"]
    assert [one.message.value for one in place.receive()] == [b"new"]
    place.reopen()
    assert place.values() == ["new"]


def test_deleting_a_topic_in_the_unit_that_wrote_to_it(place: Place) -> None:
    sent, deleted = place.write(Send([message("a")]), DeleteTopic("orders"))
    assert sent is not None
    assert sent.error is None
    assert deleted is None
    assert place.store.topic("orders") is None
    place.write(Send([message("b")]), DeleteTopic("orders"), Send([message("c")]))
    assert place.values() == ["c"]
    place.reopen()
    assert place.values() == ["c"]


def test_delayed_messages_appear_at_their_time_and_not_before(place: Place) -> None:
    later = message("later", deliver_at=place.now + 1_000)
    at = place.do(Send([later, message("now")], gid="s1")).positions
    assert (at[0].queue, at[0].offset) == (-1, -1)
    assert at[1].offset == 0
    place.do(prepare("t1"))
    place.do(Commit("t1"))
    assert place.values() == ["now", "t1"]
    assert place.sweep(PromoteDelayed(100)).next_at == place.now + 1_000
    place.reopen()
    place.wait(999)
    assert place.sweep(PromoteDelayed(100)).done == 0
    place.wait(1)
    assert place.sweep(PromoteDelayed(100)).done == 1
    assert place.values() == ["later", "now", "t1"]
    (found,) = [one for one in place.messages() if one.value == b"later"]
    assert (found.gid, found.sequence, found.stored_at) == ("s1", 0, place.now)
    assert place.sweep(PromoteDelayed(100)).done == 0


def test_delayed_messages_keep_the_order_of_their_times(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for delay in (30, 10, 20, 10):
        place.do(Send([message(str(delay), deliver_at=place.now + delay)]))
    place.wait(100)
    done = [place.sweep(PromoteDelayed(3)) for _ in range(2)]
    assert [(one.done, one.more) for one in done] == [(3, True), (1, False)]
    assert [one.value for one in place.queue("orders", 0)] == [b"10", b"10", b"20", b"30"]


def test_a_delay_counts_from_when_the_store_has_the_message(place: Place) -> None:
    """Of a send, from then; of a transaction, from its prepare; of a part, from its own."""
    place.do(PreparePart("p", [message("part", delay_ms=1_000)]))
    place.do(Prepare("t1", "shop", [message("half", delay_ms=1_000)]))
    place.wait(400)
    place.do(Commit("t1", [PartRef("p", 1)]))
    place.do(Send([message("sent", delay_ms=1_000), message("at once", delay_ms=0)], "s1"))
    place.reopen()
    for wait, seen in ((599, ["at once"]), (1, ["at once", "half", "part"]), (399, ["at once", "half", "part"])):
        place.wait(wait)
        place.sweep(PromoteDelayed(100))
        assert place.values() == seen
    place.wait(1)
    place.sweep(PromoteDelayed(100))
    assert place.values() == ["at once", "half", "part", "sent"]


def test_a_delay_that_is_over_at_the_commit_holds_nothing_up(place: Place) -> None:
    place.do(Prepare("t1", "shop", [message("half", delay_ms=1_000)]))
    place.wait(1_000)
    place.do(Commit("t1"))
    assert place.values() == ["half"]


@pytest.mark.parametrize("bytes_each", [1, 100_000])
def test_a_delayed_message_of_a_part_is_known_again_and_waits(place: Place, bytes_each: int) -> None:
    part = [message("x" * bytes_each), message("y" * bytes_each, delay_ms=50)]
    place.do(PreparePart("p", part))
    place.wait(10)
    assert place.do(PreparePart("p", part)).duplicate
    place.do(Commit("t1", [PartRef("p", 2)]))
    assert [value[0] for value in place.values()] == ["x"]
    place.wait(40)
    place.sweep(PromoteDelayed(100))
    assert sorted(value[0] for value in place.values()) == ["x", "y"]


def test_a_repeated_prepare_with_a_delay_is_the_same_one(place: Place) -> None:
    op = Prepare("t1", "shop", [message("half", delay_ms=1_000)])
    place.do(op)
    place.wait(500)
    assert place.do(op).duplicate
    assert place.refused(Prepare("t1", "shop", [message("half", delay_ms=999)])).error == "different_content"


def test_a_deliver_at_in_the_past_delivers_at_once(place: Place) -> None:
    place.do(Send([message("a", deliver_at=place.now), message("b", deliver_at=1)]))
    assert place.values() == ["a", "b"]


def test_a_deleted_topic_takes_its_delayed_messages_with_it(place: Place) -> None:
    place.do(Send([message("a", deliver_at=place.now + 10)]))
    place.do(DeleteTopic("orders"))
    place.do(PutTopic("orders"))
    place.wait(10)
    assert place.sweep(PromoteDelayed(10)).done == 1
    assert place.values() == []


def test_appended_tells_which_queues_have_something_new(place: Place) -> None:
    place.do(PutTopic("orders", 2))
    place.do(prepare("t1"))
    assert place.take_made().appended == set()
    place.do(Commit("t1"))
    (at,) = [one.queue for one in place.messages()]
    assert place.take_made().appended == {("orders", at)}
    assert place.take_made().appended == set()
