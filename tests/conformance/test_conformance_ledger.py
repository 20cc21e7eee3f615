"""The ledger: a numbered batch is committed once, whoever asks and however its rows were split."""

from __future__ import annotations

import engines
import msgspec
from engines import Place, message, prepare

from tallystick.core.ops import CommitBatch, PartRef, PreparePart, Send
from tallystick.store.kv.engine import Changes
from tallystick.store.kv.ledger import EARLIER
from tallystick.store.protocol import ForgetApp

make_place = engines.make_place
place = engines.place


def part(place: Place, name: str, *values: str) -> PartRef:
    place.do(PreparePart(name, [message(value) for value in values]))
    return PartRef(name, len(values))


def test_a_batch_becomes_visible_at_once_under_one_gid(place: Place) -> None:
    parts = [part(place, "p1", "a", "b"), part(place, "p2", "c")]
    assert place.values() == []
    assert place.do(CommitBatch("app", 0, "g0", parts)) is None
    assert [(one.gid, one.value) for one in sorted(place.messages(), key=lambda one: one.sequence)] == [
        ("g0", b"a"),
        ("g0", b"b"),
        ("g0", b"c"),
    ]
    view = place.view("g0")
    assert (view.state, view.resolved_by, view.group, view.messages) == ("committed", "ledger", "app", 3)


def test_a_replayed_batch_changes_nothing_and_its_parts_are_dropped(place: Place) -> None:
    place.do(CommitBatch("app", 7, "g7", [part(place, "p1", "a", "b")]))
    replayed = [part(place, "p2", "a"), part(place, "p3", "b")]
    assert place.do(CommitBatch("app", 7, "g7b", replayed)).duplicate
    assert place.do(CommitBatch("app", 6, "g6", [part(place, "p4", "old")])).duplicate
    assert place.values() == ["a", "b"]
    assert place.store.counts().parts == 0
    assert place.store.transaction("g7b") is None
    assert place.store.ledger("app").gid == "g7"  # type: ignore[union-attr]


def test_a_lost_answer_may_be_asked_for_again(place: Place) -> None:
    op = CommitBatch("app", 0, "g0", [part(place, "p1", "a")])
    place.do(op)
    place.reopen()
    assert place.do(op).duplicate
    assert place.values() == ["a"]


def test_a_missing_part_commits_nothing(place: Place) -> None:
    there = part(place, "p1", "a")
    for parts in ([there, PartRef("gone", 1)], [PartRef("p1", 2)], [there, there]):
        assert place.refused(CommitBatch("app", 0, "g0", parts)).error == "part_unavailable"
    assert place.store.ledger("app") is None
    assert place.values() == []
    place.do(CommitBatch("app", 0, "g0", [there]))
    assert place.values() == ["a"]


def test_two_drivers_in_one_group_commit_only_one_counts(place: Place) -> None:
    first, second = part(place, "p1", "a"), part(place, "p2", "a")
    one, two = place.write(CommitBatch("app", 3, "x", [first]), CommitBatch("app", 3, "y", [second]))
    assert one is None
    assert two is not None
    assert two.duplicate
    assert place.values() == ["a"]
    assert place.store.counts().parts == 0


def test_an_empty_batch_counts_and_numbers_may_be_skipped(place: Place) -> None:
    place.do(CommitBatch("app", 0, "g0"))
    place.do(CommitBatch("app", 5, "g5", [part(place, "p1", "a")]))
    assert place.do(CommitBatch("app", 3, "g3", [part(place, "p2", "late")])).duplicate
    assert place.values() == ["a"]


def test_applications_do_not_meet(place: Place) -> None:
    place.do(CommitBatch("app", 5, "g1", [part(place, "p1", "a")]))
    place.do(CommitBatch("app2", 0, "g2", [part(place, "p2", "b")]))
    place.do(CommitBatch("ap", 0, "g3", [part(place, "p3", "c")]))
    assert place.values() == ["a", "b", "c"]
    assert [(one.app, one.version) for one in place.store.ledgers("", 10)] == [("ap", 0), ("app", 5), ("app2", 0)]
    assert [one.app for one in place.store.ledgers("ap", 1)] == ["app"]


def test_a_gid_that_was_used_before_is_refused(place: Place) -> None:
    place.do(prepare("t1"))
    place.do(Send([message("sent")], "t2"))
    for gid in ("t1", "t2"):
        refused = place.refused(CommitBatch("app", 0, gid, [part(place, f"p-{gid}", "a")]))
        assert (refused.error, refused.field) == ("different_content", "gid")
    assert place.values() == ["sent"]


def test_a_forgotten_application_begins_anew(place: Place) -> None:
    place.do(CommitBatch("app", 5, "g1", [part(place, "p1", "a")]))
    place.do(ForgetApp("app"))
    assert place.refused(ForgetApp("app")).error == "not_found"
    place.do(CommitBatch("app", 0, "g2", [part(place, "p2", "b")]))
    assert place.values() == ["a", "b"]


# --- what was committed under a version ------------------------------------------------------------------------------


def _known(place: Place) -> list[tuple[int, int, str]]:
    view = place.store.ledger("app")
    assert view is not None
    return [(one.version, one.messages, one.digest) for one in (*view.earlier, view)]


def test_a_version_remembers_what_was_committed_under_it(place: Place) -> None:
    place.do(CommitBatch("app", 0, "g0", [part(place, "p1", "a", "b")], "sum:ab"))
    place.reopen()
    assert _known(place) == [(0, 2, "sum:ab")]
    place.do(CommitBatch("app", 4, "g4", [], "sum:0"))
    assert _known(place) == [(0, 2, "sum:ab"), (4, 0, "sum:0")]


def test_what_is_remembered_does_not_change_with_a_replay_of_other_content(place: Place) -> None:
    place.do(CommitBatch("app", 0, "g0", [part(place, "p1", "a")], "sum:a"))
    assert place.do(CommitBatch("app", 0, "g0b", [part(place, "p2", "b", "c")], "sum:bc")).duplicate
    assert _known(place) == [(0, 1, "sum:a")]


def test_who_sends_no_digest_goes_on_without_one(place: Place) -> None:
    for version in range(2):
        place.do(CommitBatch("app", version, f"g{version}", [part(place, f"p{version}", "a")]))
    assert _known(place) == [(0, 1, ""), (1, 1, "")]


def test_only_the_newest_versions_are_remembered(place: Place) -> None:
    for version in range(EARLIER + 10):
        place.do(CommitBatch("app", version, f"g{version}", [], f"sum:{version}"))
    known = _known(place)
    assert [version for version, _, _ in known] == list(range(9, EARLIER + 10))
    assert all(digest == f"sum:{version}" for version, _, digest in known)


def test_a_list_of_applications_does_without_their_earlier_versions(place: Place) -> None:
    for version in range(3):
        place.do(CommitBatch("app", version, f"g{version}", [], f"sum:{version}"))
    (listed,) = place.store.ledgers("", 10)
    assert (listed.version, listed.digest, listed.earlier) == (2, "sum:2", [])


def test_a_record_of_before_digests_is_read_and_gone_on_from(place: Place) -> None:
    """What earlier releases have written: version, gid, number of messages and time."""
    place.do(CommitBatch("app", 3, "g3", [part(place, "p1", "a")], "sum:a"))
    changes = Changes()
    changes.keys["index"][b"Lapp"] = msgspec.msgpack.encode([3, "g3", 1, place.now])
    place.store._engine.write(changes)
    assert _known(place) == [(3, 1, "")]
    place.do(CommitBatch("app", 4, "g4", [], "sum:0"))
    assert _known(place) == [(3, 1, ""), (4, 0, "sum:0")]
