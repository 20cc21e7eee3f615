"""What a store keeps of access: tokens, whose transaction it is, and who did what."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, prepare
from test_conformance_tables import rows

from tallystick.core.access import CallerLimits, Grant
from tallystick.core.errors import InvalidRequest
from tallystick.core.limits import Limits
from tallystick.core.ops import (
    AnswerChecks,
    Commit,
    CommitBatch,
    DropParts,
    PartRef,
    PreparePart,
    Rollback,
    Send,
)
from tallystick.core.token_records import TokenRecord
from tallystick.core.wire import AuditLine
from tallystick.store.protocol import (
    Audited,
    AuditQuery,
    DropToken,
    ExpireAudit,
    Guarded,
    Hurry,
    OperatorResolve,
    PutToken,
    Resume,
    ResumeCalls,
    StopCalls,
    StoreOp,
)

make_place = engines.make_place_shared_too
place = engines.place

GRANTS = (Grant(("producer", "call"), topics=("orders.*",), groups=("shop",), hosts=("*.example:443",)),)
MINE, FOREIGN = ("shop", "ledger-*"), ("bank",)


def record(name: str = "shop", token_id: str = "a1", **rest: object) -> TokenRecord:
    return TokenRecord(name, token_id, "digest", GRANTS, engines.START, **rest)  # type: ignore[arg-type]


def audited(op: object, action: str = "resolve", subject: str = "t1", who: str = "ann") -> Audited:
    return Audited(op, who, "token", "10.0.0.1", action, subject)  # type: ignore[arg-type]


def lines(place: Place, **query: object) -> list[AuditLine]:
    """All of them, read in small pages."""
    found, after = place.store.audit(AuditQuery(2, **query))  # type: ignore[arg-type]
    while after is not None:
        more, after = place.store.audit(AuditQuery(2, after, **query))  # type: ignore[arg-type]
        found += more
    return found


# --- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_is_kept_with_all_that_is_said_of_it(place: Place) -> None:
    kept = record(created_by="ann", expires_at=engines.START + 5, limits=CallerLimits(10, 1_000))
    place.do(PutToken(kept))
    assert place.store.tokens() == [kept]
    place.reopen()
    assert place.store.tokens() == [kept]


def test_a_token_under_a_name_that_is_taken_is_refused_and_the_first_one_stays(place: Place) -> None:
    place.do(PutToken(record()))
    assert place.do(PutToken(record())).duplicate
    refused = place.refused(PutToken(record(token_id="b2")))
    assert (refused.error, refused.field) == ("conflict", "name")
    assert [one.id for one in place.store.tokens()] == ["a1"]


def test_of_two_tokens_of_one_name_in_one_unit_the_first_wins(place: Place) -> None:
    first, second = place.write(PutToken(record()), PutToken(record(token_id="b2")))
    assert first is None
    assert second.error == "conflict"  # type: ignore[union-attr]
    place.reopen()
    assert [one.id for one in place.store.tokens()] == ["a1"]


def test_a_revoked_token_is_gone_with_the_answer_and_for_good(place: Place) -> None:
    place.do(PutToken(record()))
    place.do(PutToken(record("other", "b2")))
    place.do(DropToken("shop"))
    assert [one.name for one in place.store.tokens()] == ["other"]
    place.reopen()
    assert [one.name for one in place.store.tokens()] == ["other"]
    refused = place.refused(DropToken("shop"))
    assert (refused.error, refused.field) == ("not_found", "name")
    place.do(PutToken(record(token_id="c3")))
    assert [one.id for one in place.store.tokens()] == ["b2", "c3"]


def test_a_token_is_dropped_by_its_id_only_if_that_one_has_the_name(place: Place) -> None:
    place.do(PutToken(record()))
    assert place.refused(DropToken("shop", "b2")).error == "not_found"
    assert [one.id for one in place.store.tokens()] == ["a1"]
    place.do(DropToken("shop", "a1"))
    assert place.store.tokens() == []


def test_there_is_a_limit_to_tokens(make_place: MakePlace) -> None:
    place = make_place(limits=Limits(tokens=2))
    for name in ("a", "b"):
        place.do(PutToken(record(name, name)))
    assert place.refused(PutToken(record("c", "c"))).error == "too_large"
    place.do(DropToken("a"))
    place.do(PutToken(record("c", "c")))


def test_the_list_of_tokens_is_the_same_object_until_one_changes(place: Place) -> None:
    place.do(PutToken(record()))
    before = place.store.tokens()
    place.do(prepare("t1"))
    assert place.store.tokens() is before
    place.do(PutToken(record("other", "b2")))
    assert place.store.tokens() is not before
    assert [one.name for one in before] == ["shop"]


# --- whose transaction it is -------------------------------------------------------------------------------------

TOUCHING: list[StoreOp] = [
    Commit("t1"),
    Rollback("t1"),
    OperatorResolve("t1", "committed"),
    Resume("t1"),
    Hurry("t1"),
    ResumeCalls("t1"),
    StopCalls("t1"),
]


@pytest.mark.parametrize("op", TOUCHING, ids=lambda op: type(op).__name__)
def test_a_transaction_of_another_group_is_not_touched(place: Place, op: StoreOp) -> None:
    place.do(prepare("t1"))
    refused = place.refused(Guarded(op, FOREIGN))  # type: ignore[arg-type]
    assert (refused.error, refused.field) == ("forbidden", "gid")
    assert place.view("t1").state == "prepared"
    place.do(Commit("t1"))
    assert place.refused(Guarded(op, FOREIGN)).error == "forbidden"  # type: ignore[arg-type]


def test_a_transaction_of_a_group_that_a_pattern_covers_is_resolved(place: Place) -> None:
    for number, group in enumerate(("shop", "ledger-7")):
        place.do(prepare(f"t{number}", group=group))
        place.do(Guarded(Commit(f"t{number}"), MINE))
        assert place.view(f"t{number}").state == "committed"
        assert place.do(Guarded(Commit(f"t{number}"), MINE)).duplicate


def test_a_transaction_that_is_not_known_goes_on_as_usual(place: Place) -> None:
    assert place.refused(Guarded(Commit("t1"), MINE)).error == "not_found"
    place.do(Guarded(Rollback("t1"), MINE))
    assert place.view("t1").state == "rolled_back"
    assert place.do(Guarded(Rollback("t1"), MINE)).duplicate, "a retry is no offence"
    assert place.refused(Guarded(Commit("t1"), MINE)).error == "outcome_conflict"


def test_what_belongs_to_no_group_is_for_those_who_may_touch_every_one(place: Place) -> None:
    place.do(Send([engines.message()], "t1"))
    assert place.refused(Guarded(Hurry("t1"), MINE)).error == "forbidden"
    assert place.do(Guarded(Hurry("t1"), ("*",))).duplicate


def test_answers_for_other_groups_count_for_nothing_and_the_rest_is_taken(place: Place) -> None:
    for gid, group in (("mine", "shop"), ("yours", "bank"), ("resolved", "bank")):
        place.do(prepare(gid, group=group))
    place.do(Rollback("resolved"))
    said = AnswerChecks(dict.fromkeys(("mine", "yours", "resolved", "unknown"), "committed"))
    refused = place.refused(Guarded(said, ("shop",)))
    assert (refused.error, refused.field) == ("forbidden", "answers")
    assert "2 of 4" in refused.detail
    assert "yours" in refused.detail
    assert [place.view(gid).state for gid in ("mine", "yours", "resolved")] == ["committed", "prepared", "rolled_back"]
    assert not [event for event in place.made.events if event.kind == "conflict"]


PAIRS = ((("shop",), ("orders",)), (("bank",), ("bills",)))


def put_part(place: Place, topic: str) -> None:
    place.do(PreparePart("p", [engines.message(topic=topic)]))


@pytest.mark.parametrize(("group", "topic"), [("shop", "bills"), ("bank", "orders"), ("shop", "elsewhere")])
def test_a_part_is_claimed_by_a_group_that_may_produce_what_it_holds(place: Place, group: str, topic: str) -> None:
    put_part(place, topic)
    place.do(prepare("t1", group=group))
    claimed = [PartRef("p", 1)]
    for op in (Commit("t1", claimed), Rollback("t1", ["p"]), CommitBatch(group, 1, "b", claimed)):
        refused = place.refused(Guarded(op, ("shop", "bank"), PAIRS))
        assert (refused.error, refused.field) == ("forbidden", "parts")
    assert place.view("t1").state == "prepared"


@pytest.mark.parametrize(("group", "topic"), [("shop", "orders"), ("bank", "bills")])
def test_a_part_is_claimed_with_a_grant_for_both(place: Place, group: str, topic: str) -> None:
    put_part(place, topic)
    place.do(prepare("t1", group=group))
    place.do(Guarded(Commit("t1", [PartRef("p", 1)]), ("shop", "bank"), PAIRS))
    put_part(place, topic)
    place.do(Guarded(CommitBatch(group, 1, "b", [PartRef("p", 1)]), ("*",), PAIRS))


def test_a_part_that_no_group_claims_is_for_those_who_produce_what_it_holds(place: Place) -> None:
    put_part(place, "elsewhere")
    assert place.refused(Guarded(DropParts(["p"]), ("*",), PAIRS)).error == "forbidden"
    assert place.refused(Guarded(PreparePart("p", [], index=1), ("*",), PAIRS)).error == "forbidden"
    place.do(DropParts(["p"]))
    for topic in ("orders", "bills"):
        put_part(place, topic)
        place.do(Guarded(DropParts(["p"]), ("*",), PAIRS))


# --- the audit log -----------------------------------------------------------------------------------------------


def test_a_deed_is_written_down_with_who_did_it_and_from_where(place: Place) -> None:
    place.do(prepare("t1"))
    place.do(audited(OperatorResolve("t1", "committed")))
    (line,) = lines(place)
    assert (line.at, line.who, line.kind, line.source) == (place.now, "ann", "token", "10.0.0.1")
    assert (line.action, line.subject) == ("resolve", "t1")
    place.reopen()
    assert lines(place) == [line]


@pytest.mark.parametrize(
    "op", [OperatorResolve("t1", "rolled_back"), Guarded(OperatorResolve("t1", "committed"), FOREIGN)]
)
def test_what_is_refused_is_not_written_down(place: Place, op: StoreOp) -> None:
    place.do(prepare("t1"))
    place.do(Commit("t1"))
    place.refused(audited(op))
    assert lines(place) == []


def test_a_conflict_of_an_audited_operation_is_told_with_its_gid(place: Place) -> None:
    place.do(prepare("t1"))
    place.do(Commit("t1"))
    place.refused(audited(Guarded(OperatorResolve("t1", "rolled_back"), MINE)))
    assert [(event.kind, event.subject) for event in place.made.events] == [("conflict", "t1")]


def test_the_newest_deeds_come_first_page_by_page_and_by_who_and_what(place: Place) -> None:
    for number in range(9):
        place.do(prepare(f"t{number}"))
        who, action = ("ann", "bob")[number % 2], ("resolve", "stop", "reset")[number % 3]
        place.do(audited(OperatorResolve(f"t{number}", "committed"), action, f"t{number}", who))
        place.wait(number % 2)  # some in the same millisecond
    assert [line.subject for line in lines(place)] == [f"t{number}" for number in reversed(range(9))]
    assert [line.subject for line in lines(place, who="bob")] == ["t7", "t5", "t3", "t1"]
    assert [line.subject for line in lines(place, action="resolve")] == ["t6", "t3", "t0"]
    assert [line.subject for line in lines(place, who="ann", action="reset")] == ["t8", "t2"]
    late = next(line.at for line in lines(place) if line.subject == "t6")
    assert [line.subject for line in lines(place, since=late)] == ["t8", "t7", "t6"]
    assert lines(place, who="nobody") == []


def test_a_place_that_is_none_is_refused(place: Place) -> None:
    for after in ("x", "00", "K"):
        with pytest.raises(InvalidRequest, match="after"):
            place.store.audit(AuditQuery(10, after))


def test_deeds_are_a_table_in_order_of_time(place: Place) -> None:
    for number in range(7):
        place.do(audited(PutToken(record(f"n{number}", f"i{number}")), "create token", f"n{number}"))
        place.wait(10)
    found = rows(place, "audit")
    assert [row["subject"] for row in found] == [f"n{number}" for number in range(7)]
    first = {"at": engines.START, "who": "ann", "kind": "token", "source": "10.0.0.1", "action": "create token"}
    assert found[0] == {**first, "subject": "n0"}
    splits = place.store.splits("audit", None, 3)
    assert len(splits) > 1
    parts = [row for split in splits for row in rows(place, "audit", after=split.after, before=split.before)]
    assert parts == found


def test_deeds_are_forgotten_after_their_retention_and_the_next_look_is_told(make_place: MakePlace) -> None:
    place = make_place(audit_retention_ms=1_000)
    assert place.sweep(ExpireAudit(100)).next_at is None
    for number in range(5):
        place.do(audited(PutToken(record(f"n{number}", f"i{number}")), "create token", f"n{number}"))
        place.wait(100)
    assert place.sweep(ExpireAudit(100)).next_at == engines.START + 1_000
    place.now = engines.START + 1_200
    progress = place.sweep(ExpireAudit(2))
    assert (progress.done, progress.more) == (2, True)
    progress = place.sweep(ExpireAudit(2))
    assert (progress.done, progress.more, progress.next_at) == (1, False, engines.START + 1_300)
    assert [line.subject for line in lines(place)] == ["n4", "n3"]
