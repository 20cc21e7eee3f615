"""The barrier's documents, and what follows from those that are there: no input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.barrier import queries
from tallystick.barrier.branch_key import Branch
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.names import checked_table
from tallystick.barrier.operations.barrier import Decision
from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import Outcome

COLLECTION = "dtm_barrier.barrier"
"""dtm's database and collection."""

UNIQUE = ("gid", "branch_id", "op", "barrier_id")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentPlan:
    """What a transaction has to do before its effect, and whether there is to be one."""

    marks: list[Document]
    run: bool


def database_and_collection(name: str) -> tuple[str, str]:
    database, dot, collection = checked_table(name).partition(".")
    if not dot:
        raise InvalidRequest(f"collection: {name!r} is not database.collection, as in {COLLECTION}", field="collection")
    return database, collection


def key_of(branch: Branch) -> Document:
    """What finds the mark of an effect."""
    return {field: getattr(branch, field) for field in UNIQUE}


def mark_of(branch: Branch, trans_type: str, reason: str) -> Document:
    """The mark of an effect; `reason` is the operation that left it."""
    return {"trans_type": trans_type, **key_of(branch), "reason": reason}


def plan(branch: Branch, trans_type: str, found: Iterable[Mapping[str, Any]]) -> DocumentPlan:
    """What follows from the marks that are there: of this effect, and of the one that it takes back."""
    reasons = {document["op"]: document.get("reason") for document in found}
    if branch.op in reasons:
        if branch.is_message:
            raise AlreadyDecided(branch.gid, outcome_of(reasons[branch.op]))
        return DocumentPlan([], run=False)
    marks = [mark_of(branch, trans_type, branch.op)]
    origin = branch.origin
    if origin is None or origin.op in reasons:
        return DocumentPlan(marks, run=True)
    # What is to be taken back has not happened; its mark sees to it that it never does.
    return DocumentPlan([mark_of(origin, trans_type, branch.op), *marks], run=False)


def outcome_of(reason: Any) -> Outcome | None:
    """None for a reason that nobody knows: it is no outcome."""
    return queries.OUTCOMES.get(reason) if isinstance(reason, str) else None


def decision_of(found: Mapping[str, Any] | None) -> Decision:
    """What a check-back may say when its own mark was not let in. One that cannot be read yet is no outcome."""
    return (None if found is None else outcome_of(found.get("reason"))) or "running"


def is_unique_index(index: Mapping[str, Any]) -> bool:
    """Whether an index lets one mark of an effect in, and no second."""
    fields = [field for field, _ in index.get("key", ())]
    return bool(index.get("unique")) and sorted(fields) == sorted(UNIQUE) and "partialFilterExpression" not in index
