"""Moving a consumer group to another place of a topic, whichever way it consumes."""

from __future__ import annotations

from typing import Any

import engines
import pytest
from engines import START, Place, message

from tallystick.core.ops import Ack, CommitOffsets, Nack, Renew, Send
from tallystick.store.protocol import PutTopic, ResetGroup, TrimTo

make_place = engines.make_place
place = engines.place


def filled(place: Place, queues: int = 1, each: int = 5) -> None:
    """A topic with the messages 0, 1, 2 ... in each queue, a second apart."""
    place.do(PutTopic("orders", queues))
    for number in range(each):
        for _ in range(queues):
            place.do(Send([message(str(number))]))
        place.wait(1_000)


def texts(place: Place, **rest: Any) -> list[str]:
    return [one.message.value.decode() for one in place.receive(**rest)]


def offsets(place: Place, group: str = "g") -> list[int]:
    return [one.offset for one in place.store.stored_offsets(group, "orders").queues]


# --- groups that take messages under lease -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reset", "follows"),
    [
        ({"to": "earliest"}, ["0", "1", "2", "3", "4"]),
        ({"to": "latest"}, []),
        ({"offsets": {0: 3}}, ["3", "4"]),
        ({"offsets": {0: 5}}, []),
        ({"timestamp": START + 2_000}, ["2", "3", "4"]),
        ({"timestamp": START + 2_001}, ["3", "4"]),
        ({"timestamp": 0}, ["0", "1", "2", "3", "4"]),
        ({"timestamp": START + 3_600_000}, []),
    ],
    ids=str,
)
def test_a_group_with_leases_goes_on_at_the_place_it_is_moved_to(
    place: Place, reset: dict[str, Any], follows: list[str]
) -> None:
    filled(place)
    place.do(Ack("g", [one.receipt for one in place.receive(max=2)]))
    place.do(ResetGroup("g", "orders", **reset))
    place.reopen()
    (view,) = place.store.groups("g")
    assert (view.lag, view.leased, place.store.counts().leased) == (len(follows), 0, 0)
    assert texts(place) == follows
    place.do(Send([message("new")]))
    assert texts(place) == ["new"]


def test_whoever_holds_a_message_while_the_group_is_moved_holds_nothing_any_more(place: Place) -> None:
    filled(place)
    held, given_back, kept = place.receive(max=3)
    place.do(Nack("g", [given_back.receipt], delay_ms=0))
    place.do(ResetGroup("g", "orders", "earliest"))
    for op in (Ack("g", [held.receipt]), Nack("g", [held.receipt]), Renew("g", [kept.receipt], 1_000)):
        assert place.refused(op).error == "stale_lease"
    again = place.receive()
    assert [(one.message.value, one.attempt) for one in again] == [(str(number).encode(), 1) for number in range(5)]
    assert place.receive() == [], "nobody gets what somebody has"
    assert place.refused(Ack("g", [held.receipt])).error == "stale_lease", "also when the message is lent again"
    place.do(Ack("g", [one.receipt for one in again]))
    place.wait(3_600_000)
    assert (place.receive(), place.store.counts().leased) == ([], 0)


def test_only_the_queues_that_are_named_are_moved(place: Place) -> None:
    filled(place, queues=2)
    held = place.receive()
    mine = [one for one in held if one.message.queue == 0]
    others = [one for one in held if one.message.queue == 1]
    place.do(ResetGroup("g", "orders", offsets={0: 4}))
    assert place.store.counts().leased == len(others)
    assert place.refused(Ack("g", [mine[0].receipt])).error == "stale_lease"
    place.do(Ack("g", [one.receipt for one in others]))
    assert [(one.message.queue, one.message.offset) for one in place.receive()] == [(0, 4)]


def test_other_groups_and_other_topics_stay_where_they_are(place: Place) -> None:
    filled(place)
    place.do(Send([message("x", topic="elsewhere")]))
    kept = [*place.receive("g", "elsewhere"), *place.receive("other")]
    place.receive("g")
    place.do(ResetGroup("g", "orders", "earliest"))
    place.do(Ack("g", [kept[0].receipt]))
    place.do(Ack("other", [one.receipt for one in kept[1:]]))
    assert (place.receive("other"), len(place.receive("g"))) == ([], 5)


def test_in_order_after_a_move_as_before(place: Place) -> None:
    place.do(PutTopic("orders", 1))
    for number in range(3):
        place.do(Send([message(str(number), key="k")]))
    (first,) = place.receive(ordered=True)
    place.do(ResetGroup("g", "orders", "earliest"))
    assert place.refused(Ack("g", [first.receipt])).error == "stale_lease"
    for number in range(3):
        (one,) = place.receive(ordered=True)
        assert one.message.value == str(number).encode()
        assert place.receive(ordered=True) == []
        place.do(Ack("g", [one.receipt]))


def test_a_queue_that_the_group_has_not_met_is_moved_as_well(place: Place) -> None:
    filled(place)
    place.receive(max=1)
    place.do(PutTopic("orders", 2))
    place.do(Send([message("new", key="b")]))
    place.do(ResetGroup("g", "orders", "latest"))
    assert place.receive() == []


def test_storing_offsets_for_a_group_with_leases_is_refused(place: Place) -> None:
    filled(place)
    place.receive(max=1)
    refused = place.refused(CommitOffsets("g", "orders", {0: 3}))
    assert (refused.error, refused.field) == ("conflict", "group")
    assert "reset" in refused.detail
    assert place.refused(CommitOffsets("g", "orders", {0: 3}, mirror=True)).error == "conflict"


# --- groups whose offsets the broker keeps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reset", "stored"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [5, 5]),
        ({"offsets": {1: 3}}, [2, 3]),
        ({"timestamp": START + 4_000}, [4, 4]),
    ],
    ids=str,
)
def test_stored_offsets_are_moved(place: Place, reset: dict[str, Any], stored: list[int]) -> None:
    filled(place, queues=2)
    place.do(CommitOffsets("g", "orders", {0: 2, 1: 1}))
    place.do(ResetGroup("g", "orders", **reset))
    place.reopen()
    assert offsets(place) == stored
    expected = dict(enumerate(stored))
    assert place.refused(CommitOffsets("g", "orders", {0: 3}, {0: stored[0] + 1})).error == "offset_moved"
    place.do(CommitOffsets("g", "orders", {0: 5, 1: 5}, expected))


def test_offsets_that_are_only_shown_here_are_not_moved(place: Place) -> None:
    """They are kept in the consumer's own database: what is changed here would be forgotten with its next message."""
    filled(place, queues=2)
    place.do(CommitOffsets("g", "orders", {0: 2}, mirror=True))
    place.reopen()
    assert (offsets(place), place.store.stored_offsets("g", "orders").lag) == ([2, 0], 8)
    refused = place.refused(ResetGroup("g", "orders", "earliest"))
    assert (refused.error, refused.field) == ("conflict", "group")
    assert "tallystick_offset" in refused.detail
    assert offsets(place) == [2, 0]
    place.do(CommitOffsets("g", "orders", {0: 3}))  # the broker keeps them from now on
    place.do(ResetGroup("g", "orders", "latest"))
    assert offsets(place) == [5, 5]


# --- what cannot be done ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leases", [True, False])
@pytest.mark.parametrize(
    ("reset", "error"),
    [
        ({}, "invalid_request"),
        ({"to": "latest", "timestamp": 1}, "invalid_request"),
        ({"to": "earliest", "offsets": {0: 1}}, "invalid_request"),
        ({"offsets": {}}, "invalid_request"),
        ({"offsets": {7: 0}}, "invalid_request"),
        ({"offsets": {-1: 0}}, "invalid_request"),
        ({"offsets": {0: 4, 1: 99}}, "offset_out_of_range"),
        ({"offsets": {0: 2, 1: 2}}, "offset_out_of_range"),
    ],
    ids=str,
)
def test_a_place_that_is_none_is_refused_and_nothing_moves(
    place: Place, leases: bool, reset: dict[str, Any], error: str
) -> None:
    filled(place, queues=2)
    place.do(TrimTo("orders", {1: 3}, 100))
    if leases:
        place.receive(max=1)
    else:
        place.do(CommitOffsets("g", "orders", {0: 4}))
    before = place.store.groups("g")
    refused = place.refused(ResetGroup("g", "orders", **reset))
    assert refused.error == error
    assert place.store.groups("g") == before


def test_a_group_without_a_place_has_none_to_be_moved_from(place: Place) -> None:
    filled(place)
    place.do(Send([message("x", topic="elsewhere")]))
    place.receive("g", "elsewhere")
    for group, topic in (("nobody", "orders"), ("g", "orders"), ("g", "nothing")):
        assert place.refused(ResetGroup(group, topic, "earliest")).error == "not_found"


def test_an_offset_past_the_end_of_the_queue_is_not_stored(place: Place) -> None:
    filled(place)
    place.do(TrimTo("orders", {0: 3}, 100))
    refused = place.refused(CommitOffsets("g", "orders", {0: 6}))
    assert (refused.error, refused.field) == ("offset_out_of_range", "offsets")
    assert "3 to 5" in refused.detail
    for kept in (3, 5):
        place.do(CommitOffsets("g", "orders", {0: kept}))


@pytest.mark.parametrize("offset", [0, 2])
def test_an_offset_that_was_trimmed_meanwhile_is_as_good_as_the_start(place: Place, offset: int) -> None:
    filled(place)
    place.do(TrimTo("orders", {0: 3}, 100))
    place.do(CommitOffsets("g", "orders", {0: offset}))
    assert place.store.stored_offsets("g", "orders").queues[0].offset == 3
