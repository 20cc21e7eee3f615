"""The proof: sets of transfer ids from three places, compared. No I/O, so that it can be shown wrong evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

SHOWN = 5  # ids that a failed line names

Amounts = list[tuple[int, int]]  # (transfer id, amount), doubles included


class RunEvidence(NamedTuple):
    """What was found after the run."""

    wished: set[int]  # ids of the transfers that customers asked for
    debited: Amounts  # rows that bank A committed
    refused: set[int]
    logged: Amounts  # messages in the broker's log
    credited: Amounts  # rows that bank B committed
    debited_gids: set[str]  # of bank A's rows
    committed_gids: set[str]  # of the broker's transactions
    money_before: int
    money_at_a: int
    money_at_b: int
    unresolved: int  # transactions without an outcome, parked ones included
    crashed: int = 0  # processes that ended without being killed


class Judgement(NamedTuple):
    """What `tallystick spark reconcile` found: by kind, how many and some ids. None if it did not run, or not to its
    end; the remark says why."""

    found: dict[str, tuple[int, list[str]]] | None
    remark: str
    failed: bool = False  # it was asked, and broke


class Line(NamedTuple):
    """One thing that must hold, and whether it does."""

    claim: str
    holds: bool
    detail: str


def judge(evidence: RunEvidence, judgement: Judgement) -> list[Line]:
    """Everything that must hold after the run: what the business says, and what the sets of messages say.

    The sets are reconcile's business. Where Spark cannot run or fails, they are compared here: enough for a
    demo's thousands.
    """
    sets = _sets(evidence) if judgement.found is None else _reconciled(judgement.found)
    return [*_business(evidence), *sets, *_run(evidence)]


def _business(evidence: RunEvidence) -> list[Line]:
    debited = _ids(evidence.debited)
    return [
        none_of("every transfer was tried", evidence.wished - debited - evidence.refused, "never tried"),
        none_of("each was debited or refused, not both", debited & evidence.refused, "both"),
        none_of("each was debited at most once", _doubled(evidence.debited), "debited twice"),
        none_of("each was credited with its own amount", _wrong_amounts(evidence), "with another amount"),
        _money(evidence),
    ]


def _reconciled(found: dict[str, tuple[int, list[str]]]) -> list[Line]:
    """What reconcile says, kind by kind."""
    claims = {
        "lost": "nothing is lost",
        "duplicated": "nothing is there twice",
        "ghost": "nothing was sent or credited that was not committed",
        "contradictory": "no two sides contradict each other",
        "in_doubt": "nothing is left in doubt",
        "late": "nothing is left waiting",
    }
    return [_named(f"reconcile: {claim}", *found[kind], "found") for kind, claim in claims.items()]


def _sets(evidence: RunEvidence) -> list[Line]:
    debited, credited, logged = (_ids(one) for one in (evidence.debited, evidence.credited, evidence.logged))
    return [
        none_of("every committed transfer is in the log", debited - logged, "missing in the log"),
        none_of("the log has no other", logged - debited, "in the log, never debited"),
        none_of("the log has none twice", _doubled(evidence.logged), "twice in the log"),
        none_of("every committed transfer was credited", debited - credited, "lost"),
        none_of("no other was credited", credited - debited, "credited, never debited"),
        none_of("none was credited twice", _doubled(evidence.credited), "credited twice"),
        none_of(
            "the broker's outcomes are bank A's own",
            evidence.debited_gids ^ evidence.committed_gids,
            "transactions with another outcome",
        ),
        Line(
            "no transaction is left without an outcome",
            evidence.unresolved == 0,
            f"{evidence.unresolved} left" if evidence.unresolved else "",
        ),
    ]


def _run(evidence: RunEvidence) -> list[Line]:
    crashed = f"{evidence.crashed} did" if evidence.crashed else ""
    return [
        Line("no process ended by itself", evidence.crashed == 0, crashed),
        Line("something was there to be shown", bool(evidence.debited and evidence.refused), _volume(evidence)),
    ]


def passed(lines: Iterable[Line]) -> bool:
    return all(line.holds for line in lines)


def _ids(amounts: Amounts) -> set[int]:
    return {number for number, _ in amounts}


def _doubled(amounts: Amounts) -> set[int]:
    return {number for number, times in Counter(number for number, _ in amounts).items() if times > 1}


def _wrong_amounts(evidence: RunEvidence) -> set[int]:
    """Ids that both sides have, with amounts that differ. Missing and doubled ones are told elsewhere."""
    debited, credited = dict(evidence.debited), dict(evidence.credited)
    return {number for number in debited.keys() & credited.keys() if debited[number] != credited[number]}


def _money(evidence: RunEvidence) -> Line:
    after = evidence.money_at_a + evidence.money_at_b
    detail = f"{evidence.money_before:,} before, {evidence.money_at_a:,} + {evidence.money_at_b:,} = {after:,} after"
    return Line("the money adds up", after == evidence.money_before, detail)


def _volume(evidence: RunEvidence) -> str:
    return f"{len(_ids(evidence.debited)):,} committed, {len(evidence.refused):,} refused"


def none_of(claim: str, wrong: set[int] | set[str], word: str) -> Line:
    """It holds if nothing is wrong; else some of what is wrong is named."""
    return _named(claim, len(wrong), [str(one) for one in sorted(wrong)], word)


def _named(claim: str, number: int, some: list[str], word: str) -> Line:
    if not number:
        return Line(claim, True, "")
    more = ", ..." if number > SHOWN else ""
    return Line(claim, False, f"{number:,} {word}: {', '.join(some[:SHOWN])}{more}")
