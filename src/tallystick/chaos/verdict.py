"""The verdict, by sets of names, in two forms. No I/O, so that it can be shown wrong evidence.

While some messages are unconfirmed: committed - unconfirmed <= consumed <= committed. When all has settled: committed =
consumed. In both, nothing of what was rolled back has an effect, none is there twice, and no two sides contradict each
other. A mode that promises less is held to what it promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from tallystick.chaos.ledgers import Effect
from tallystick.chaos.modes import Promise
from tallystick.demo.verdict import Line, none_of

NO_OUTCOMES: Mapping[str, frozenset[str]] = {}


class Findings(NamedTuple):
    """What was found: names of messages, unless said otherwise."""

    committed: set[str]  # in producers' databases
    effects: list[Effect]  # in consumers' databases
    unconfirmed: Set[str] = frozenset()
    ok: Set[str] = frozenset()  # their producer was told that it is done
    rolled_back: Set[str] = frozenset()  # their producer was told that it is not, and never will be
    logged: list[str] | None = None  # in the brokers' logs; None where nobody has looked
    outcomes: Mapping[str, frozenset[str]] = NO_OUTCOMES  # of each gid, every outcome that anybody tells
    unresolved: Set[str] = frozenset()  # gids
    unsettled: int = 0  # messages that no consumer has settled
    crashed: int = 0  # processes that ended by themselves


def owed(findings: Findings, promise: Promise) -> set[str]:
    """What consumers must have by now, or very soon."""
    return set() if promise.may_lose else findings.committed - findings.unconfirmed


def standing(findings: Findings, promise: Promise, missing: set[str]) -> list[Line]:
    """While the load goes on. `missing` is what was owed at the end of the round and has not come since."""
    return [
        none_of("what is confirmed has been consumed", missing, "lost"),
        *_always(findings, promise),
    ]


def settled(findings: Findings, promise: Promise) -> list[Line]:
    """When nobody sends any more, and all that is left has had its time."""
    consumed = _names(findings)
    return [
        _lost("what is committed has been consumed", findings.committed - consumed, promise),
        *_always(findings, promise),
        *_logs(findings, promise),
        none_of(
            "what a producer was told is done is in its database", set(findings.ok - findings.committed), "missing"
        ),
        none_of("nothing is left without an outcome", set(findings.unresolved), "left"),
        _number("nothing is left unsettled", findings.unsettled, "left"),
        _number("no process ended by itself", findings.crashed, "did"),
        Line("something was there to be shown", bool(consumed), _volume(findings)),
    ]


def _always(findings: Findings, promise: Promise) -> list[Line]:
    """What holds at any moment."""
    consumed = _names(findings)
    doubled = _repeated(effect.name for effect in findings.effects)
    return [
        none_of("nothing else has been consumed", consumed - findings.committed, "ghosts"),
        none_of("nothing of what was rolled back", consumed & findings.rolled_back, "rolled back, and consumed"),
        _doubled("none has been consumed twice", doubled, promise),
        none_of(
            "no message of a log has had its effect twice",
            _repeated(effect.message_id for effect in findings.effects),
            "with two effects",
        ),
        none_of(
            "every effect has its mark beside it",
            {effect.name for effect in findings.effects if not effect.marked},
            "without inbox row or offset",
        ),
        none_of("every transaction has one outcome", _contradictory(findings), "with two"),
    ]


def _logs(findings: Findings, promise: Promise) -> list[Line]:
    if findings.logged is None:
        return []
    logged = set(findings.logged)
    return [
        _lost("what is committed is in the brokers' logs", findings.committed - logged, promise),
        none_of("nothing else is in them", logged - findings.committed, "not committed"),
        _doubled("none is in them twice", _repeated(findings.logged), promise),
    ]


def _lost(claim: str, missing: set[str], promise: Promise) -> Line:
    if promise.may_lose:
        return Line(f"{claim}, or lost, which this mode allows", True, f"{len(missing):,} lost")
    return none_of(claim, missing, "lost")


def _doubled(claim: str, doubled: set[str], promise: Promise) -> Line:
    if promise.may_double:
        return Line(f"{claim}, or doubled, which this mode allows", True, f"{len(doubled):,} doubled")
    return none_of(claim, doubled, "doubled")


def _contradictory(findings: Findings) -> set[str]:
    """Gids of which two outcomes are told, and work that is there although its producer was told that it is not."""
    two = {gid for gid, told in findings.outcomes.items() if len(told) > 1}
    return two | (findings.rolled_back & findings.committed)


def _names(findings: Findings) -> set[str]:
    return {effect.name for effect in findings.effects}


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def _number(claim: str, number: int, word: str) -> Line:
    return Line(claim, number == 0, f"{number:,} {word}" if number else "")


def _volume(findings: Findings) -> str:
    return f"{len(findings.committed):,} committed, {len(_names(findings)):,} consumed"
