"""Parts: half messages without a transaction, claimed by a commit all at once, or gone at their time."""

from __future__ import annotations

import engines
from engines import MakePlace, Place, message, prepare

from tallystick.core.ops import Commit, PartRef, PreparePart, Rollback
from tallystick.store.protocol import ExpireParts

make_place = engines.make_place
place = engines.place


def part(name: str, *values: str, index: int = 0, ttl_ms: int | None = None) -> PreparePart:
    return PreparePart(name, [message(value) for value in values], index, ttl_ms)


def test_a_commit_claims_its_parts_in_the_order_it_names_them(place: Place) -> None:
    place.do(part("p1", "a", "b"))
    place.do(part("p2", "c"))
    assert place.values() == []
    place.do(Commit("t1", [PartRef("p2", 1), PartRef("p1", 2)]))
    by_sequence = sorted(place.messages(), key=lambda one: one.sequence)
    assert [one.value for one in by_sequence] == [b"c", b"a", b"b"]
    assert {one.gid for one in by_sequence} == {"t1"}
    assert place.store.counts().parts == 0


def test_the_requests_of_one_part_come_in_any_order_and_count_together(place: Place) -> None:
    place.do(part("p1", "late", index=300))
    place.do(part("p1", "early", index=2))
    assert place.store.counts().parts == 2
    place.do(Commit("t1", [PartRef("p1", 2)]))
    by_sequence = sorted(place.messages(), key=lambda one: one.sequence)
    assert [one.value for one in by_sequence] == [b"early", b"late"]


def test_a_repeated_part_is_a_duplicate_and_other_content_is_refused(place: Place) -> None:
    place.do(part("p1", "a"))
    assert place.do(part("p1", "a")).duplicate
    assert place.refused(part("p1", "other")).error == "different_content"
    place.do(Commit("t1", [PartRef("p1", 1)]))
    assert place.values() == ["a"]


def test_parts_whose_names_begin_alike_are_different_parts(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(part("p10", "b"))
    place.do(part("p", "c"))
    place.do(Commit("t1", [PartRef("p1", 1)]))
    assert place.values() == ["a"]
    place.do(Commit("t2", [PartRef("p", 1), PartRef("p10", 1)]))
    assert place.values() == ["a", "b", "c"]


def test_a_commit_with_a_wrong_count_takes_nothing_at_all(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(part("p2", "b"))
    for refs in (
        [PartRef("p1", 1), PartRef("p2", 2)],
        [PartRef("p1", 1), PartRef("missing", 1)],
        [PartRef("p1", 1), PartRef("p1", 1)],
        [PartRef("p1", 0)],
    ):
        refused = place.refused(Commit("t1", refs))
        assert (refused.error, refused.field) == ("part_unavailable", "parts")
    assert place.store.transaction("t1") is None
    assert place.values() == []
    place.do(Commit("t1", [PartRef("p1", 1), PartRef("p2", 1)]))
    assert place.values() == ["a", "b"]


def test_a_part_is_claimed_by_one_transaction_only(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(Commit("t1", [PartRef("p1", 1)]))
    assert place.refused(Commit("t2", [PartRef("p1", 1)])).error == "part_unavailable"
    assert place.values() == ["a"]


def test_two_commits_of_one_part_in_one_unit_claim_it_once(place: Place) -> None:
    place.do(part("p1", "a"))
    first, second = place.write(Commit("t1", [PartRef("p1", 1)]), Commit("t2", [PartRef("p1", 1)]))
    assert first is None
    assert second is not None
    assert second.error == "part_unavailable"
    assert place.values() == ["a"]


def test_a_replayed_commit_with_other_parts_changes_nothing(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(Commit("batch-7", [PartRef("p1", 1)]))
    place.do(part("p2", "a"))
    assert place.do(Commit("batch-7", [PartRef("p2", 1)])).duplicate
    assert place.values() == ["a"]


def test_a_prepared_transaction_commits_its_own_messages_and_its_parts(place: Place) -> None:
    place.do(prepare("t1", "own"))
    place.do(part("p1", "a"))
    assert place.refused(Commit("t1", [PartRef("p1", 5)])).error == "part_unavailable"
    assert place.view("t1").state == "prepared"
    place.do(Commit("t1", [PartRef("p1", 1)]))
    assert place.values() == ["a", "own"]
    assert place.view("t1").messages == 2


def test_a_rollback_drops_the_parts_it_names(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(part("p1", "b", index=1))
    place.do(part("p2", "c"))
    place.do(Rollback("t1", ["p1", "missing"]))
    assert place.store.counts().parts == 1
    assert place.refused(Commit("t2", [PartRef("p1", 2)])).error == "part_unavailable"
    assert place.refused(Commit("t1", [PartRef("p2", 1)])).error == "outcome_conflict"
    place.do(Commit("t2", [PartRef("p2", 1)]))
    assert place.values() == ["c"]


def test_an_unclaimed_part_expires_at_its_time(make_place: MakePlace) -> None:
    place = make_place(part_ttl_ms=10_000)
    place.do(part("short", "a", ttl_ms=1_000))
    place.do(part("usual", "b"))
    assert place.sweep(ExpireParts(100)).next_at == place.now + 1_000
    place.wait(999)
    assert place.sweep(ExpireParts(100)).done == 0
    place.wait(1)
    progress = place.sweep(ExpireParts(100))
    assert (progress.done, progress.next_at) == (1, place.now + 9_000)
    assert place.refused(Commit("t1", [PartRef("short", 1)])).error == "part_unavailable"
    place.do(Commit("t1", [PartRef("usual", 1)]))
    place.wait(20_000)
    assert place.sweep(ExpireParts(100)).done == 0
    assert place.values() == ["b"]
    assert place.store.counts().parts == 0


def test_parts_expire_in_pieces(place: Place) -> None:
    for number in range(5):
        place.do(part(f"p{number}", "a", ttl_ms=0))
    done = [place.sweep(ExpireParts(2)) for _ in range(3)]
    assert [(one.done, one.more) for one in done] == [(2, True), (2, True), (1, False)]
    assert place.store.counts().parts == 0


def test_a_partly_expired_part_cannot_be_claimed(place: Place) -> None:
    place.do(part("p1", "a", ttl_ms=1_000))
    place.do(part("p1", "b", index=1, ttl_ms=5_000))
    place.wait(2_000)
    place.sweep(ExpireParts(100))
    assert place.refused(Commit("t1", [PartRef("p1", 2)])).error == "part_unavailable"
    assert place.values() == []


def test_parts_survive_a_reopen(place: Place) -> None:
    place.do(part("p1", "a"))
    place.do(part("p2", "b", ttl_ms=1_000))
    place.reopen()
    assert place.store.counts().parts == 2
    place.wait(1_000)
    assert place.sweep(ExpireParts(100)).done == 1
    place.do(Commit("t1", [PartRef("p1", 1)]))
    place.reopen()
    assert place.values() == ["a"]
    assert place.do(Commit("t1", [PartRef("p1", 1)])).duplicate
