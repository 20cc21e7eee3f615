"""One family of errors: each has a word, a status and a sentence, and survives the way to the client."""

from __future__ import annotations

import pytest

import tallystick.client  # noqa: F401 - its errors belong to the family too, and must not disturb it
from tallystick.core import errors
from tallystick.core.errors import TallystickError, error_from_code


def family(root: type[TallystickError]) -> list[type[TallystickError]]:
    return [root, *(one for child in root.__subclasses__() for one in family(child))]


ALL = family(TallystickError)
SENT = [kind for kind in ALL if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_has_a_sentence_a_status_and_a_word_of_its_own(kind: type[TallystickError]) -> None:
    first_line = (kind.__doc__ or "").strip().splitlines()[0]
    assert first_line.endswith(".")
    assert "code" in vars(kind), "an inherited word would be taken for the other error"
    assert kind.code.islower()
    assert kind.code.replace("_", "").isalpha()
    assert 400 <= kind.status < 600


def test_no_two_errors_share_a_word() -> None:
    assert len({kind.code for kind in ALL}) == len(ALL) > 20


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_an_error_is_rebuilt_from_its_word(kind: type[TallystickError]) -> None:
    rebuilt = error_from_code(kind.code, "what happened", "ops[0].gid")
    assert type(rebuilt) is kind
    assert (rebuilt.detail, rebuilt.field, str(rebuilt)) == ("what happened", "ops[0].gid", "what happened")


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.__name__)
def test_without_a_detail_the_docstring_speaks(kind: type[TallystickError]) -> None:
    assert str(kind()) == kind().detail == (kind.__doc__ or "").strip().splitlines()[0]


@pytest.mark.parametrize("code", ["", "error", "no such word", "x" * 10_000, *(kind.code for kind in ALL)])
def test_any_word_from_outside_gives_an_error_and_never_fails_itself(code: str) -> None:
    rebuilt = error_from_code(code, "detail")
    assert isinstance(rebuilt, TallystickError)
    assert rebuilt.detail == "detail"


def test_only_what_may_succeed_later_says_so() -> None:
    assert {kind.code for kind in SENT if kind.retryable} == {
        "busy",
        "draining",
        "moved",
        "storage_failed",
        "storage_full",
        "unavailable",
        "unreachable",
    }


def test_contradictions_are_all_conflicts() -> None:
    conflicts = {kind.code for kind in family(errors.Conflict)}
    assert conflicts == {
        "conflict",
        "outcome_conflict",
        "already_resolved",
        "different_content",
        "part_unavailable",
        "stale_lease",
        "offset_moved",
    }
    assert {kind.status for kind in family(errors.Conflict)} == {409}
