"""Consumer groups: leases with receive, ack, nack, renew; stored offsets."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, message

from tallystick.core.backoff import Backoff
from tallystick.core.limits import Limits
from tallystick.core.ops import Ack, CommitOffsets, Nack, OpResult, Renew, Send
from tallystick.core.wire import Delivery
from tallystick.store.protocol import PutTopic, Receive, Received, TrimTopics

make_place = engines.make_place_shared_too
place = engines.place


def one_queue(place: Place, *values: str, **rest: str) -> None:
    place.do(PutTopic("orders", 1))
    for value in values:
        place.do(Send([message(value, **rest)]))


def texts(deliveries: list[Delivery]) -> list[str]:
    return [one.message.value.decode() for one in deliveries]


def receipts(deliveries: list[Delivery]) -> list[str]:
    return [one.receipt for one in deliveries]


# --- leases --------------------------------------------------------------------------------------------------------


def test_a_message_is_lent_to_one_consumer_of_a_group_and_to_every_group(place: Place) -> None:
    one_queue(place, "a", "b")
    first = place.receive(max=1)
    second = place.receive()
    assert (texts(first), texts(second)) == (["a"], ["b"])
    assert place.receive() == []
    assert texts(place.receive("another")) == ["a", "b"]
    assert {one.attempt for one in first + second} == {1}
    assert {one.lease_until for one in first} == {place.now + 30_000}


def test_an_acknowledged_message_never_comes_back(place: Place) -> None:
    one_queue(place, "a", "b")
    a, b = place.receive()
    place.do(Ack("g", [a.receipt]))
    place.reopen()
    place.wait(10**9)
    again = place.receive()
    assert texts(again) == ["b"]
    assert again[0].attempt == 2
    assert place.store.counts().leased == 1
    assert b.receipt != again[0].receipt


def test_a_lease_that_ends_makes_the_message_visible_again_and_the_old_receipt_stale(place: Place) -> None:
    one_queue(place, "a")
    (first,) = place.receive(invisible_ms=1_000)
    place.wait(999)
    assert place.receive() == []
    place.wait(1)
    (second,) = place.receive(invisible_ms=1_000)
    assert (second.message, second.attempt) == (first.message, 2)
    for op in (Ack("g", [first.receipt]), Nack("g", [first.receipt]), Renew("g", [first.receipt], 1_000)):
        refused = place.refused(op)
        assert (refused.error, refused.stale) == ("stale_lease", [first.receipt])
    place.do(Ack("g", [second.receipt]))
    place.wait(10**9)
    assert place.receive() == []


def test_a_lease_that_has_ended_but_passed_to_nobody_is_still_good(place: Place) -> None:
    one_queue(place, "a")
    (first,) = place.receive(invisible_ms=1_000)
    place.wait(5_000)
    place.do(Ack("g", [first.receipt]))
    assert place.receive() == []


def test_settling_twice_is_stale_the_second_time(place: Place) -> None:
    one_queue(place, "a", "b")
    a, b = place.receive()
    place.do(Ack("g", [a.receipt]))
    refused = place.refused(Ack("g", [a.receipt, b.receipt]))
    assert refused.stale == [a.receipt], "the good receipt of the same request is settled"
    assert place.store.counts().leased == 0


@pytest.mark.parametrize("dead", [False, True])
def test_a_receipt_named_twice_in_one_request_counts_once(place: Place, dead: bool) -> None:
    one_queue(place, "a", "b")
    a, b = place.receive()
    place.do(Nack("g", [a.receipt, a.receipt], dead=dead, delay_ms=0))
    place.do(Ack("g", [b.receipt, b.receipt]))
    assert place.store.counts().leased == (0 if dead else 1)
    assert place.store.groups("g")[0].leased == (0 if dead else 1)
    assert place.values("dlq.g") == (["a"] if dead else [])


def test_a_receipt_of_another_group_or_topic_or_of_nobody_is_stale(place: Place) -> None:
    one_queue(place, "a")
    (mine,) = place.receive("g")
    place.receive("other")
    topic, queue, offset, lease = mine.receipt.split("/")
    others = [
        ("other", mine.receipt),
        ("nobody", mine.receipt),
        ("g", f"elsewhere/{queue}/{offset}/{lease}"),
        ("g", f"{topic}/{queue}/7/{lease}"),
        ("g", f"{topic}/9/{offset}/{lease}"),
        ("g", f"{topic}/{queue}/{offset}/{int(lease) ^ 1}"),
    ]
    for group, receipt in others:
        assert place.refused(Ack(group, [receipt])).stale == [receipt]
    place.do(Ack("g", [mine.receipt]))


@pytest.mark.parametrize("receipt", ["", "x", "a/b/c/d", "orders/0/0", "orders/-1/0/1", "orders/0/-1/1", "o/65536/0/1"])
def test_what_is_no_receipt_is_refused_as_such(place: Place, receipt: str) -> None:
    one_queue(place, "a")
    (mine,) = place.receive()
    refused = place.refused(Ack("g", [mine.receipt, receipt]))
    assert (refused.error, refused.field) == ("invalid_request", "receipts")
    assert place.store.counts().leased == 1, "nothing of a refused request is carried out"


def test_renewal_keeps_a_message_away_from_others(place: Place) -> None:
    one_queue(place, "a")
    (mine,) = place.receive(invisible_ms=1_000)
    for _ in range(5):
        place.wait(900)
        place.do(Renew("g", [mine.receipt], 1_000))
        assert place.receive() == []
    place.wait(1_000)
    (again,) = place.receive()
    assert again.attempt == 2


def test_a_message_given_back_comes_again_after_its_delay(place: Place) -> None:
    one_queue(place, "a")
    (mine,) = place.receive()
    place.do(Nack("g", [mine.receipt], delay_ms=500))
    assert place.refused(Ack("g", [mine.receipt])).error == "stale_lease"
    place.wait(499)
    assert place.receive() == []
    place.wait(1)
    (again,) = place.receive()
    assert again.attempt == 2
    place.do(Nack("g", [again.receipt], delay_ms=0))
    assert texts(place.receive()) == ["a"]


def test_without_a_delay_the_backoff_of_the_group_grows_and_is_capped(make_place: MakePlace) -> None:
    place = make_place(redelivery=Backoff(1_000, 4_000, jitter=0.0))
    one_queue(place, "a")
    waits = []
    for _ in range(5):
        (mine,) = place.receive()
        place.do(Nack("g", [mine.receipt]))
        waited = 0
        while not (result := place.do(Receive("g", "orders", 1, 30_000))).deliveries:
            assert isinstance(result, Received)
            assert result.next_visible is not None
            step = result.next_visible - place.now
            waited += step
            place.wait(step)
        place.do(Nack("g", [result.deliveries[0].receipt], delay_ms=0))
        waits.append(waited)
    assert waits == [1_000, 4_000, 4_000, 4_000, 4_000]


def test_a_receive_tells_when_the_next_message_becomes_visible(place: Place) -> None:
    one_queue(place, "a")
    place.receive(invisible_ms=700)
    result = place.do(Receive("g", "orders", 1, 30_000))
    assert (result.deliveries, result.next_visible) == ([], place.now + 700)


def test_after_the_last_attempt_a_message_goes_to_the_dead_letter_topic(make_place: MakePlace) -> None:
    place = make_place(max_attempts=3)
    one_queue(place, "a", key="k", tag="red")
    for attempt in (1, 2, 3):
        (mine,) = place.receive(invisible_ms=10)
        assert mine.attempt == attempt
        place.wait(10)
    assert place.receive() == []
    (letter,) = place.messages("dlq.g")
    assert (letter.value, letter.key, letter.tag) == (b"a", "k", "red")
    assert letter.headers is not None
    assert letter.headers["dead-topic"] == "orders"
    assert letter.headers["dead-attempts"] == "3"
    assert place.store.counts().leased == 0
    assert [event.kind for event in place.take_made().events] == ["dead_letter"]
    assert texts(place.receive("g", "dlq.g")) == ["a"]


def test_a_message_given_back_too_often_dies_and_one_called_dead_dies_at_once(make_place: MakePlace) -> None:
    place = make_place(max_attempts=2)
    one_queue(place, "a")
    for _ in range(2):
        (mine,) = place.receive()
        place.do(Nack("g", [mine.receipt], delay_ms=0, reason="cannot parse"))
    place.do(Send([message("b", headers={"trace": "1"})]))
    (other,) = place.receive()
    place.do(Nack("g", [other.receipt], dead=True, reason="poison"))
    letters = {one.value: one.headers or {} for one in place.messages("dlq.g")}
    assert letters[b"a"]["dead-reason"] == "cannot parse"
    assert letters[b"b"]["dead-reason"] == "poison"
    assert letters[b"b"]["trace"] == "1"
    place.wait(10**9)
    assert place.receive() == []


def test_dead_letters_on_the_way_do_not_hide_the_message_behind_them(make_place: MakePlace) -> None:
    place = make_place(max_attempts=2)
    one_queue(place, *"abc")
    for _ in range(2):
        place.receive(max=3, invisible_ms=10)
        place.wait(10)
    place.do(Send([message("d")]))
    assert texts(place.receive(max=1, invisible_ms=1)) == ["d"]
    place.wait(1)
    assert texts(place.receive(max=1)) == ["d"]
    assert place.values("dlq.g") == ["a", "b", "c"]


def test_in_order_per_key_waits_for_the_one_before(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for value, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        place.do(Send([message(value, key=key)]))
    first = place.receive(ordered=True)
    assert texts(first) == ["a1"], "what lies behind a blocked key waits as well"
    assert place.receive(ordered=True) == []
    place.do(Ack("g", receipts(first)))
    second = place.receive(ordered=True)
    assert texts(second) == ["a2", "b1"]
    place.do(Nack("g", [second[0].receipt], delay_ms=100))
    assert place.receive(ordered=True) == [], "a message given back still holds its key"
    place.do(Ack("g", [second[1].receipt]))
    assert place.receive(ordered=True) == []
    place.wait(100)
    again = place.receive(ordered=True)
    assert texts(again) == ["a2"]
    place.do(Ack("g", receipts(again)))
    assert texts(place.receive(ordered=True)) == ["a3"]


def test_in_order_after_a_lease_ended(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for number in range(3):
        place.do(Send([message(str(number), key="k")]))
    seen = []
    while found := place.receive(ordered=True, invisible_ms=100):
        assert len(found) == 1
        if found[0].attempt == 1:
            place.wait(100)
            continue
        seen += texts(found)
        place.do(Ack("g", receipts(found)))
    assert seen == ["0", "1", "2"]


def test_tags_choose_and_the_rest_is_passed_by(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for value, tag in (("r", "red"), ("g", "green"), ("n", None), ("r2", "red")):
        place.do(Send([message(value, tag=tag)]))
    assert texts(place.receive(tags=["red"])) == ["r", "r2"]
    assert place.receive() == []
    assert texts(place.receive("other", tags=["green", "blue"])) == ["g"]
    assert place.receive("none", tags=[]) == []


def test_a_group_that_starts_at_the_latest_sees_only_what_comes_after(place: Place) -> None:
    place.do(PutTopic("orders", 2))
    place.do(Send([message("old"), message("old")]))
    assert place.receive(start="latest") == []
    place.do(Send([message("new"), message("new")]))
    assert texts(place.receive(start="latest")) == ["new", "new"]
    assert place.receive(start="earliest") == [], "where a group stands is decided once"


def test_a_group_that_started_at_the_latest_misses_nothing_when_its_topic_grows(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    assert place.receive(start="latest") == []
    place.do(PutTopic("orders", 3))
    place.do(Send([message(str(number)) for number in range(6)]))
    assert sorted(texts(place.receive(start="latest"))) == ["0", "1", "2", "3", "4", "5"]


def test_the_number_of_leases_is_bounded(make_place: MakePlace) -> None:
    place = make_place(max_leased=3)
    one_queue(place, *"abcdef")
    first = place.receive()
    assert texts(first) == ["a", "b", "c"]
    assert place.receive() == []
    place.do(Ack("g", [first[1].receipt]))
    assert texts(place.receive()) == ["d"]
    place.wait(30_000)
    assert sorted(texts(place.receive())) == ["a", "c", "d"]


def test_a_receive_takes_from_all_queues_and_respects_its_maximum(place: Place) -> None:
    place.do(PutTopic("orders", 4))
    place.do(Send([message(str(number)) for number in range(40)]))
    seen: list[str] = []
    while found := place.receive(max=7):
        assert len(found) <= 7
        seen += texts(found)
    assert sorted(seen) == sorted(str(number) for number in range(40))


def test_leases_survive_a_reopen(place: Place) -> None:
    one_queue(place, "a", "b", "c")
    a, b, c = place.receive(invisible_ms=1_000)
    place.do(Nack("g", [c.receipt], delay_ms=5_000))
    place.reopen()
    assert place.receive() == []
    place.do(Ack("g", [a.receipt]))
    place.wait(1_000)
    assert [(one.message.value, one.attempt) for one in place.receive()] == [(b"b", 2)]
    assert place.refused(Ack("g", [b.receipt])).error == "stale_lease"
    place.wait(4_000)
    assert texts(place.receive()) == ["c"]


def test_a_leased_message_that_was_trimmed_is_gone_and_its_lease_with_it(place: Place) -> None:
    place.do(PutTopic("orders", 1, 1_000))
    place.do(Send([message("a")]))
    place.receive(invisible_ms=5_000)
    place.wait(2_000)
    place.sweep(TrimTopics(10))
    place.reopen()
    place.wait(3_000)
    assert place.receive() == []
    assert place.store.counts().leased == 0


def test_receiving_from_an_unknown_topic(make_place: MakePlace) -> None:
    assert make_place().receive(topic="new") == []
    closed = make_place(auto_create_topics=False)
    refused = closed.refused(Receive("g", "new", 1, 1_000))
    assert (refused.error, refused.field) == ("not_found", "topic")
    assert closed.store.groups() == []


# --- stored offsets ------------------------------------------------------------------------------------------------


def stored(place: Place, group: str = "g") -> list[int]:
    return [one.offset for one in place.store.stored_offsets(group, "orders").queues]


def test_offsets_are_stored_and_read_back(place: Place) -> None:
    place.do(PutTopic("orders", 2))
    place.do(Send([message(str(number)) for number in range(6)]))
    assert stored(place) == [0, 0]
    place.do(CommitOffsets("g", "orders", {0: 2, 1: 3}))
    place.do(CommitOffsets("g", "orders", {0: 1}))
    place.reopen()
    assert stored(place) == [1, 3]
    view = place.store.stored_offsets("g", "orders")
    assert (view.lag, [one.lag for one in view.queues]) == (2, [2, 0])
    assert stored(place, "other") == [0, 0]


def test_offsets_move_only_from_where_they_are_expected(place: Place) -> None:
    place.do(PutTopic("orders", 2))
    place.do(Send([message(str(number)) for number in range(8)]))
    place.do(CommitOffsets("g", "orders", {0: 1, 1: 1}, {0: 0, 1: 0}))
    refused = place.refused(CommitOffsets("g", "orders", {0: 2, 1: 2}, {0: 1, 1: 0}))
    assert (refused.error, refused.field) == ("offset_moved", "expected")
    assert stored(place) == [1, 1], "all of them or none"
    place.do(CommitOffsets("g", "orders", {0: 2, 1: 2}, {0: 1, 1: 1}))
    assert stored(place) == [2, 2]


@pytest.mark.parametrize("offsets", [{7: 0}, {-1: 0}, {0: 99}, {0: 1, 1: 5}, {2**40: 0}])
def test_offsets_that_do_not_exist_are_refused_and_leave_nothing(place: Place, offsets: dict[int, int]) -> None:
    place.do(PutTopic("orders", 2))
    place.do(Send([message("a", key="k")] * 2))
    refused = place.refused(CommitOffsets("g", "orders", offsets))
    assert refused.error in ("invalid_request", "offset_out_of_range")
    assert refused.field == "offsets"
    assert place.store.groups() == []
    assert place.refused(CommitOffsets("g", "nothing", {0: 0})).error == "not_found"


def test_a_group_is_listed_with_its_lag_and_the_age_of_what_it_has_not_settled(place: Place) -> None:
    one_queue(place, "a", "b", "c")
    place.wait(1_000)
    a, _ = place.receive(max=2)
    (view,) = place.store.groups("g")
    assert (view.leased, view.lag, view.queues[0].offset) == (2, 3, 2)
    assert view.oldest_unsettled_at == place.now - 1_000
    place.do(Ack("g", [a.receipt]))
    (view,) = place.store.groups()
    assert (view.leased, view.lag) == (1, 2)


def test_acknowledging_in_the_unit_of_the_receive_is_not_possible_but_harmless(place: Place) -> None:
    """Receives see only what is durable: a message of the same unit is lent by the next receive."""
    place.do(PutTopic("orders", 1))
    _, received = place.write(Send([message("a")]), Receive("g", "orders", 10, 1_000))
    assert isinstance(received, Received)
    assert received.deliveries == []
    assert texts(place.receive()) == ["a"]


def test_two_receives_in_one_unit_lend_different_messages(place: Place) -> None:
    one_queue(place, *"abcd")
    results = place.write(*[Receive("g", "orders", 2, 1_000)] * 3)
    lent = [texts(one.deliveries) for one in results if isinstance(one, Received)]
    assert lent == [["a", "b"], ["c", "d"], []]
    assert not any(isinstance(one, OpResult) for one in results)


def test_the_number_of_groups_has_a_limit_and_a_refused_one_leaves_nothing_behind(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(groups=1))
    place.do(Receive("first", "orders", 1, 1_000))
    refused = place.refused(Receive("second", "other", 1, 1_000))
    assert (refused.error, refused.field) == ("too_large", "group")
    place.do(engines.prepare("t1", "a", group="shop"))
    refused = place.refused(engines.prepare("t2", "a", group="bank"))
    assert (refused.error, refused.field) == ("too_large", "group")
    assert [topic.name for topic in place.store.topics()] == ["orders"]
