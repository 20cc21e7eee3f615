"""Prepare, commit, roll back, send: single assignment, whatever order and however often."""

from __future__ import annotations

import itertools

import engines
import pytest
from engines import MakePlace, Place, message, prepare

from tallystick.core.ops import Check, Commit, Prepare, Rollback, Send
from tallystick.store.protocol import DeleteTopic, ExpireTombstones, OperatorResolve, PutTopic

make_place = engines.make_place_shared_too
place = engines.place

DAY = 24 * 3600 * 1000


def test_half_messages_are_invisible_until_the_commit(place: Place) -> None:
    place.do(prepare("t1", "a", "b"))
    assert place.values() == []
    assert place.receive() == []
    place.do(Commit("t1"))
    assert place.values() == ["a", "b"]
    assert {one.gid for one in place.messages()} == {"t1"}
    assert sorted(one.sequence for one in place.messages()) == [0, 1]


def test_a_rolled_back_transaction_is_never_seen(place: Place) -> None:
    place.do(prepare("t1"))
    place.do(Rollback("t1"))
    assert place.values() == []
    assert place.view("t1").state == "rolled_back"


def test_a_repeated_prepare_with_the_same_content_is_a_duplicate(place: Place) -> None:
    place.do(prepare("t1", "a"))
    assert place.do(prepare("t1", "a")).duplicate
    place.do(Commit("t1"))
    assert place.values() == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        prepare("t1", "other"),
        prepare("t1", "a", "b"),
        prepare("t1", "a", group="another"),
        Prepare("t1", "shop", [message("a", key="k")]),
        Prepare("t1", "shop", [message("a", topic="elsewhere")]),
        Prepare("t1", "shop", []),
    ],
)
def test_a_gid_with_other_content_is_refused_and_changes_nothing(place: Place, other: Prepare) -> None:
    place.do(prepare("t1", "a"))
    assert place.refused(other).error == "different_content"
    place.do(Commit("t1"))
    assert place.values() == ["a"]
    assert place.values("elsewhere") == []


@pytest.mark.parametrize(("outcome", "state"), [(Commit, "committed"), (Rollback, "rolled_back")])
def test_a_prepare_after_the_outcome_is_refused(place: Place, outcome: type[Commit], state: str) -> None:
    place.do(prepare("t1", "a"))
    place.do(outcome("t1"))
    before = place.values()
    assert place.refused(prepare("t1", "a")).error == "already_resolved"
    assert place.refused(prepare("t1", "other")).error == "already_resolved"
    assert place.do(outcome("t1")).duplicate
    assert place.values() == before
    assert place.view("t1").state == state


@pytest.mark.parametrize("outcome", [Commit, Rollback])
def test_a_repeated_outcome_is_a_duplicate_without_effect(place: Place, outcome: type[Commit]) -> None:
    place.do(prepare("t1", "a"))
    place.do(outcome("t1"))
    before = place.values()
    for _ in range(3):
        place.wait(1)
        assert place.do(outcome("t1")).duplicate
    assert place.values() == before
    assert place.view("t1").resolved_at == place.now - 3


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations([Commit, Rollback])))
def test_a_contradicting_outcome_is_a_conflict_without_effect(
    place: Place, first: type[Commit], second: type[Commit]
) -> None:
    place.do(prepare("t1", "a"))
    place.do(first("t1"))
    before = (place.values(), place.view("t1"))
    assert place.refused(second("t1")).error == "outcome_conflict"
    assert (place.values(), place.view("t1")) == before
    assert place.do(first("t1")).duplicate
    assert [event.kind for event in place.take_made().events] == ["conflict"]
    assert place.totals["conflict"] == 1


def test_commit_of_an_unknown_gid_is_not_found_and_leaves_nothing(place: Place) -> None:
    assert place.refused(Commit("t1")).error == "not_found"
    assert place.store.transaction("t1") is None
    place.do(prepare("t1", "a"))
    place.do(Commit("t1"))
    assert place.values() == ["a"]


def test_rollback_of_an_unknown_gid_leaves_a_tombstone_for_the_late_prepare(place: Place) -> None:
    place.do(Rollback("t1"))
    assert place.view("t1").state == "rolled_back"
    assert place.refused(prepare("t1", "a")).error == "already_resolved"
    assert place.refused(Commit("t1")).error == "outcome_conflict"
    assert place.do(Rollback("t1")).duplicate
    assert place.values() == []


def test_tombstones_last_for_the_dedup_retention_and_no_longer(make_place: MakePlace) -> None:
    place = make_place(dedup_retention_ms=7 * DAY)
    place.do(prepare("t1", "a"))
    place.do(Commit("t1"))
    place.do(Send([message("s")], gid="t2"))
    place.do(Rollback("t3"))
    place.wait(7 * DAY - 1)
    kept = place.sweep(ExpireTombstones(100))
    assert kept.done == 0
    assert kept.next_at == place.now + 1
    assert place.do(Commit("t1")).duplicate
    place.wait(1)
    assert place.sweep(ExpireTombstones(100)).done == 3
    assert [place.store.transaction(gid) for gid in ("t1", "t2", "t3")] == [None, None, None]
    assert place.refused(Commit("t1")).error == "not_found"
    assert place.store.scan(None, None, None, 10) == ([], None)


def test_tombstones_expire_in_pieces_and_only_the_old_ones(make_place: MakePlace) -> None:
    place = make_place(dedup_retention_ms=1_000)
    for number in range(10):
        place.do(Rollback(f"old-{number}"))
    place.wait(600)
    place.do(Rollback("young"))
    place.wait(600)
    rounds = 1
    while (progress := place.sweep(ExpireTombstones(3))).more or progress.done == 3:
        assert progress.done <= 3
        rounds += 1
    assert rounds >= 4
    assert [place.store.transaction(f"old-{number}") for number in range(10)] == [None] * 10
    assert place.view("young").state == "rolled_back"


def test_a_pending_transaction_never_expires_with_the_tombstones(make_place: MakePlace) -> None:
    place = make_place(dedup_retention_ms=1_000)
    place.do(prepare("t1", "a"))
    place.wait(365 * DAY)
    assert place.sweep(ExpireTombstones(100)).done == 0
    place.do(Commit("t1"))
    assert place.values() == ["a"]


def test_an_operator_decides_like_a_producer_but_only_what_exists(place: Place) -> None:
    place.do(prepare("t1", "a"))
    place.do(prepare("t2", "b"))
    place.do(OperatorResolve("t1", "committed"))
    place.do(OperatorResolve("t2", "rolled_back"))
    assert place.values() == ["a"]
    assert place.view("t1").resolved_by == "operator"
    assert place.do(OperatorResolve("t1", "committed")).duplicate
    assert place.refused(OperatorResolve("t1", "rolled_back")).error == "outcome_conflict"
    assert place.refused(OperatorResolve("nobody", "committed")).error == "not_found"
    assert place.refused(Commit("t2")).error == "outcome_conflict"


def test_a_send_with_a_gid_happens_once(place: Place) -> None:
    first = place.do(Send([message("a"), message("b")], gid="s1"))
    assert [(at.topic, at.offset >= 0) for at in first.positions] == [("orders", True)] * 2
    assert place.do(Send([message("a"), message("b")], gid="s1")).duplicate
    assert place.values() == ["a", "b"]
    assert place.do(Commit("s1")).duplicate
    assert place.refused(Rollback("s1")).error == "outcome_conflict"
    assert place.refused(prepare("s1", "a")).error == "already_resolved"


def test_a_send_without_a_gid_happens_each_time(place: Place) -> None:
    for _ in range(2):
        place.do(Send([message("a")]))
    assert place.values() == ["a", "a"]


def test_a_send_under_the_gid_of_a_transaction_is_refused(place: Place) -> None:
    place.do(prepare("t1", "a"))
    place.do(Rollback("t2"))
    assert place.refused(Send([message("x", topic="new")], gid="t1")).error == "invalid_request"
    assert place.refused(Send([message("x", topic="new")], gid="t2")).error == "outcome_conflict"
    assert place.store.topic("new") is None, "a refused send stored something"
    place.do(Commit("t1"))
    assert place.values() == ["a"]


def test_a_send_of_nothing_is_refused(place: Place) -> None:
    assert place.refused(Send([])).field == "messages"


def test_a_late_outcome_of_an_old_transaction_does_not_touch_the_next_one(place: Place) -> None:
    place.do(prepare("t1", "a"))
    place.do(Rollback("t1"))
    place.do(prepare("t2", "b"))
    assert place.refused(Commit("t1")).error == "outcome_conflict"
    assert place.view("t2").state == "prepared"
    place.do(Commit("t2"))
    assert place.do(Rollback("t1")).duplicate
    assert place.values() == ["b"]


def test_a_transaction_to_several_topics_is_committed_as_a_whole(place: Place) -> None:
    place.do(Prepare("t1", "shop", [message("a", topic="x"), message("b", topic="y"), message("c", topic="x")]))
    place.do(Commit("t1"))
    assert place.values("x") == ["a", "c"]
    assert place.values("y") == ["b"]


def test_a_topic_deleted_meanwhile_does_not_lose_a_committed_transaction(make_place: MakePlace) -> None:
    """The business change stands, so the messages must become visible: the topic is made again."""
    place = make_place(auto_create_topics=False)
    place.do(PutTopic("orders"))
    for gid in ("t1", "t2", "t3"):
        place.do(prepare(gid))
    place.do(DeleteTopic("orders"))
    place.do(Commit("t1"))
    place.do(OperatorResolve("t2", "committed"))
    assert place.values() == ["t1", "t2"]
    assert place.store.counts().pending == 1


def test_without_auto_create_a_prepare_to_an_unknown_topic_is_refused(make_place: MakePlace) -> None:
    place = make_place(auto_create_topics=False)
    place.do(PutTopic("known"))
    refused = place.refused(Prepare("t1", "shop", [message("a", topic="known"), message("b", topic="unknown")]))
    assert (refused.error, refused.field) == ("not_found", "topic")
    assert place.store.transaction("t1") is None
    assert place.store.counts().pending == 0
    assert place.refused(Send([message("b", topic="unknown")])).error == "not_found"


def test_the_record_shows_what_was_asked_for(place: Place) -> None:
    check = Check("url", "http://127.0.0.1:9/check", "bank", 5_000, 3, "rollback")
    place.do(Prepare("t1", "shop", [message("a"), message("b")], check, "member-1"))
    view = place.view("t1")
    assert (view.state, view.group, view.messages, view.created_at) == ("prepared", "shop", 2, place.now)
    assert (view.check_via, view.check_target, view.next_check_at) == ("url", check.target, place.now + 5_000)
    place.wait(7)
    place.do(Commit("t1"))
    view = place.view("t1")
    assert (view.state, view.group, view.messages) == ("committed", "shop", 2)
    assert (view.created_at, view.resolved_at, view.resolved_by) == (place.now - 7, place.now, "producer")


def test_everything_survives_a_reopen(place: Place) -> None:
    place.do(prepare("open", "o"))
    place.do(prepare("done", "d"))
    place.do(Commit("done"))
    place.do(Rollback("gone"))
    place.do(Send([message("s")], gid="sent"))
    counts, topics = place.store.counts(), place.store.topics()
    place.reopen()
    assert place.store.counts() == counts
    assert place.store.topics() == topics
    assert place.values() == ["d", "s"]
    assert place.do(prepare("open", "o")).duplicate
    assert place.do(Commit("done")).duplicate
    assert place.do(Send([message("s")], gid="sent")).duplicate
    assert place.refused(prepare("gone")).error == "already_resolved"
    place.do(Commit("open"))
    assert place.values() == ["d", "o", "s"]
