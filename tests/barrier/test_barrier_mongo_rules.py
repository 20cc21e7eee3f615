"""The barrier on MongoDB, as far as it can be tested without a server: documents, decisions, and servers that are away.

No MongoDB server is run here, and none is imitated; docs/how-to/mongodb.md says what that leaves open.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import ServerSelectionTimeoutError

from tallystick.barrier import AlreadyDecided, InvalidTableName
from tallystick.barrier.branch_key import Branch
from tallystick.barrier.mongo import MongoBarrier, MongoDecider, create_collection, documents
from tallystick.core.errors import InvalidRequest

REVERSES = [("try", "cancel"), ("action", "compensate"), ("action", "rollback")]


@pytest.fixture
def nowhere() -> Iterator[MongoClient[Any]]:
    """A client of a server that is not there."""
    with MongoClient("127.0.0.1", 1, serverSelectionTimeoutMS=100) as client:
        yield client


def mark(branch: Branch, reason: str) -> dict[str, Any]:
    return documents.mark_of(branch, "msg", reason)


def test_a_mark_has_dtms_fields() -> None:
    assert mark(Branch("g"), "msg") == {
        "trans_type": "msg",
        "gid": "g",
        "branch_id": "00",
        "op": "msg",
        "barrier_id": "01",
        "reason": "msg",
    }
    assert documents.COLLECTION == "dtm_barrier.barrier"


def test_a_first_effect_is_marked_and_run() -> None:
    message = Branch("g")
    assert documents.plan(message, "msg", []) == documents.DocumentPlan([mark(message, "msg")], run=True)


@pytest.mark.parametrize(("reason", "outcome"), [("msg", "committed"), ("rollback", "rolled_back"), ("?", None)])
def test_a_message_that_has_a_mark_must_not_run(reason: str, outcome: str | None) -> None:
    with pytest.raises(AlreadyDecided) as decided:
        documents.plan(Branch("g"), "msg", [mark(Branch("g"), reason)])
    assert decided.value.outcome == outcome


@pytest.mark.parametrize("reason", ["action", "compensate"])
def test_a_branch_that_has_a_mark_is_not_run_and_that_is_no_error(reason: str) -> None:
    branch = Branch("g", "01", "action")
    assert documents.plan(branch, "msg", [mark(branch, reason)]) == documents.DocumentPlan([], run=False)


@pytest.mark.parametrize(("op", "reverse"), REVERSES)
def test_what_was_done_is_taken_back_once(op: str, reverse: str) -> None:
    done, back = Branch("g", "01", op), Branch("g", "01", reverse)
    assert documents.plan(back, "saga", [mark(done, op)]) == documents.DocumentPlan(
        [documents.mark_of(back, "saga", reverse)], run=True
    )
    assert documents.plan(back, "saga", [mark(done, op), mark(back, reverse)]) == documents.DocumentPlan([], run=False)


@pytest.mark.parametrize(("op", "reverse"), REVERSES)
def test_what_never_happened_is_not_taken_back_and_never_happens(op: str, reverse: str) -> None:
    done, back = Branch("g", "01", op), Branch("g", "01", reverse)
    plan = documents.plan(back, "msg", [])
    assert plan == documents.DocumentPlan([mark(done, reverse), mark(back, reverse)], run=False)
    assert documents.plan(done, "msg", plan.marks[:1]) == documents.DocumentPlan([], run=False)


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        ({"reason": "msg"}, "committed"),
        ({"reason": "rollback"}, "rolled_back"),
        ({"reason": "something"}, "running"),
        ({"reason": 1}, "running"),
        ({}, "running"),
        (None, "running"),
    ],
)
def test_only_dtms_two_reasons_are_outcomes(found: dict[str, Any] | None, decision: str) -> None:
    assert documents.decision_of(found) == decision


@pytest.mark.parametrize(
    ("index", "right"),
    [
        ({"key": [("gid", 1), ("branch_id", 1), ("op", 1), ("barrier_id", 1)], "unique": True}, True),
        ({"key": [("op", 1), ("gid", -1), ("barrier_id", 1), ("branch_id", 1)], "unique": True}, True),
        ({"key": [("gid", 1), ("branch_id", 1), ("op", 1), ("barrier_id", 1)]}, False),
        ({"key": [("gid", 1)], "unique": True}, False),
        ({"key": [(f, 1) for f in documents.UNIQUE], "unique": True, "partialFilterExpression": {}}, False),
        ({"key": [("_id", 1)]}, False),
    ],
)
def test_only_a_unique_index_on_the_four_names_will_do(index: dict[str, Any], right: bool) -> None:
    assert documents.is_unique_index(index) is right


def test_a_server_that_is_away_is_an_error_and_the_effect_is_not_run(nowhere: MongoClient[Any]) -> None:
    ran: list[object] = []
    with pytest.raises(ServerSelectionTimeoutError):
        MongoBarrier(nowhere, "g").call(ran.append)
    with pytest.raises(ServerSelectionTimeoutError), nowhere.start_session() as session:
        MongoBarrier(nowhere, "g").mark(session)
    assert ran == []


def test_a_server_that_is_away_never_tells_an_outcome(nowhere: MongoClient[Any]) -> None:
    with pytest.raises(ServerSelectionTimeoutError):
        MongoBarrier(nowhere, "g").decide()
    with pytest.raises(ServerSelectionTimeoutError):
        MongoDecider(nowhere).decide("g")
    with pytest.raises(ServerSelectionTimeoutError):
        create_collection(nowhere)


def test_names_are_checked_before_a_server_is_asked(nowhere: MongoClient[Any]) -> None:
    with pytest.raises(InvalidRequest, match="gid"):
        MongoBarrier(nowhere, "no gid")
    with pytest.raises(InvalidRequest, match=r"database\.collection"):
        MongoBarrier(nowhere, "g", collection="barrier")
    with pytest.raises(InvalidTableName):
        MongoDecider(nowhere, collection="dtm_barrier.$where")
    with pytest.raises(InvalidRequest, match="decide"):
        MongoBarrier(nowhere, "g", "01", "action").decide()


def test_tallystick_does_not_need_pymongo_and_says_so_where_it_does() -> None:
    program = (
        "import sys; sys.modules['pymongo'] = None; import tallystick, tallystick.client, tallystick.barrier\n"
        "try: import tallystick.barrier.mongo\n"
        "except ModuleNotFoundError as missing: print(missing)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tallystick[mongodb]'" in said.stdout
