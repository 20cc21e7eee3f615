"""The checker of calls: what senders were told, what arrived at the service, what the broker shows, as sets.

A submission has three outcomes for its sender: `ok`, `failed` (rolled back, or never submitted), and unknown. What is
unknown may have happened or not; the broker then tells which, and must have done all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from call_service import Arrival

Told = Literal["ok", "failed", "unknown"]
Call = tuple[str, str]  # gid, branch


@dataclass
class CallHistory:
    branches: dict[str, list[str]] = field(default_factory=dict)
    """Of each gid that somebody tried to submit, the branches it has."""
    concurrent: set[str] = field(default_factory=set)
    told: dict[str, Told] = field(default_factory=dict)
    done_at: dict[Call, int] = field(default_factory=dict)
    """The calls that the broker has shown as done, and when that was seen first."""
    problems: list[str] = field(default_factory=list)

    def saw_done(self, gid: str, branch: str, number: int) -> None:
        self.done_at.setdefault((gid, branch), number)


def body_of(gid: str, branch: str) -> bytes:
    """What a call must carry."""
    return f'{{"call":"{gid}/{branch}"}}'.encode()


def violations(history: CallHistory, arrivals: list[Arrival], states: Mapping[str, str | None]) -> list[str]:
    """Everything that is wrong, once all has come to rest. `states` is what the broker says of each gid's calls:
    `done`, `dropped`, another state, or None if it does not know the gid."""
    succeeded = {(one.gid, one.branch) for one in arrivals if one.status == 200}
    happened = {gid for gid in history.branches if _happened(gid, history, states)}
    wanted = {(gid, branch) for gid in happened for branch in history.branches[gid]}
    return [
        *history.problems,
        *_all("lost", wanted - succeeded),
        *_all("ghost", {(one.gid, one.branch) for one in arrivals} - wanted),
        *_all("wrong body", {(o.gid, o.branch) for o in arrivals if o.body != body_of(o.gid, o.branch)}),
        *_all("again after it was done", _again(history, arrivals)),
        *_all("out of order", _out_of_order(history, arrivals)),
        *[f"unfinished: {gid} is {states.get(gid)}" for gid in sorted(happened) if states.get(gid) != "done"],
        *_contradictions(history, states),
    ]


def _happened(gid: str, history: CallHistory, states: Mapping[str, str | None]) -> bool:
    told = history.told.get(gid, "unknown")
    return told == "ok" or (told == "unknown" and states.get(gid) not in (None, "dropped"))


def _again(history: CallHistory, arrivals: list[Arrival]) -> set[Call]:
    late = {(o.gid, o.branch) for o in arrivals if o.number > history.done_at.get((o.gid, o.branch), o.number)}
    # In order, a call is begun only when the one before it is durably done: that one must not come any more.
    begun: dict[str, int] = {}
    for one in arrivals:
        if one.gid in history.concurrent or one.branch not in history.branches.get(one.gid, []):
            continue
        place = history.branches[one.gid].index(one.branch)
        if place < begun.setdefault(one.gid, place):
            late.add((one.gid, one.branch))
        begun[one.gid] = max(begun[one.gid], place)
    return late


def _out_of_order(history: CallHistory, arrivals: list[Arrival]) -> set[Call]:
    """A call that came before the one in front of it had been answered with success."""
    answered: dict[Call, int] = {}
    for one in arrivals:
        if one.status == 200:
            answered.setdefault((one.gid, one.branch), one.answered)
    found = set()
    for one in arrivals:
        branches = history.branches.get(one.gid, [])
        if one.gid in history.concurrent or one.branch not in branches[1:]:
            continue
        before = (one.gid, branches[branches.index(one.branch) - 1])
        if answered.get(before, one.number + 1) > one.number:
            found.add((one.gid, one.branch))
    return found


def _contradictions(history: CallHistory, states: Mapping[str, str | None]) -> list[str]:
    wrong = {"ok": (None, "dropped", "held"), "failed": ("done", "waiting", "parked")}
    return [
        f"contradiction: {gid} was told {told} and is {states.get(gid)}"
        for gid, told in sorted(history.told.items())
        if states.get(gid) in wrong.get(told, ())
    ]


def _all(what: str, calls: Iterable[Call]) -> list[str]:
    return [f"{what}: {gid}/{branch}" for gid, branch in sorted(calls)]
