"""A machine that composes at random what a user's code can do to a connection, a session and a gid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from border_kinds import PLACES, Kind
from border_letters import ENDINGS as LETTER_ENDINGS
from border_letters import WAYS, Way, write
from border_play import ENDINGS, MODES, Play
from border_steps import steps_of
from border_verdict import broken
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

slots = st.integers(0, 2)
endings = st.sampled_from(ENDINGS)
some_steps = st.runner().flatmap(lambda machine: st.lists(st.sampled_from(steps_of(machine.kind)), max_size=5))
MOST_LETTERS = 8  # to deliver them takes longer than to play several blocks


@dataclass(frozen=True)
class Opening:
    """How a block is begun; see `Play.enter`. `fresh`: not on the connection that the slot has had so far."""

    place: int
    variant: str
    fresh: bool
    mode: str
    gid: str
    before: bool
    early: str


openings = st.runner().flatmap(
    lambda machine: st.builds(
        Opening,
        place=st.sampled_from(PLACES),
        variant=st.sampled_from(machine.kind.variants),
        fresh=st.booleans(),
        mode=st.sampled_from([*MODES, "late"]),
        gid=st.sampled_from(["none", "none", "own", "again", "elsewhere"]),
        before=st.booleans(),
        early=st.sampled_from(["send", "call"]),
    )
)


class Broken(AssertionError):
    """Rows and messages do not agree."""


class BorderMachine(RuleBasedStateMachine):
    url: ClassVar[str]
    kind: ClassVar[Kind]
    patience: ClassVar[float] = 30.0
    wanted: ClassVar[str] = ""
    """A regular expression: what else is broken does not count."""
    found: ClassVar[list[str]]
    histories: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).histories += 1
        self.play = Play(self.url, self.kind)

    def teardown(self) -> None:
        try:
            found = [one for one in broken(self.play, self.patience) if re.search(self.wanted, one)]
        finally:
            self.play.close()
        if found:
            self.found[:] = found
            raise Broken("\n".join([*found, *map(str, self.play.attempts)]))

    @rule(slot=slots, opening=openings, some=some_steps)
    def enter(self, slot: int, opening: Opening, some: list[str]) -> None:
        """A block that stays open while others come and go."""
        slot %= self.kind.slots
        if slot in self.play.open:
            self._leave(slot, "return")
        seat = self.play.seat(slot, opening.place, opening.variant, fresh=opening.fresh)
        gid = self.play.gid(opening.gid, opening.mode, seat)
        block = self.play.enter(seat, opening.mode, gid, before=opening.before, early=opening.early)
        if block is not None:
            self.play.open[slot] = block
            self._act(slot, some)

    @rule(slot=slots, opening=openings, some=some_steps, ending=endings)
    def block(self, slot: int, opening: Opening, some: list[str], ending: str) -> None:
        """A whole one."""
        self.enter(slot, opening, some)
        if slot % self.kind.slots in self.play.open:
            self._leave(slot % self.kind.slots, ending)

    @precondition(lambda self: self.play.open)
    @rule(slot=slots, some=some_steps, ending=endings)
    def leave(self, slot: int, some: list[str], ending: str) -> None:
        known = sorted(self.play.open)
        slot = known[slot % len(known)]
        self._act(slot, some)
        self._leave(slot, ending)

    def _act(self, slot: int, some: list[str]) -> None:
        for step in some:
            self.play.open[slot].hand.do(step)

    def _leave(self, slot: int, ending: str) -> None:
        block = self.play.open.pop(slot)
        self.play.leave(block, ending)
        if self.play.can_enter(block.tx):
            raise Broken("a transaction was entered a second time")

    @precondition(lambda self: len(self.play.letters) < MOST_LETTERS)
    @rule(way=st.sampled_from(WAYS), some=some_steps, ending=st.sampled_from(LETTER_ENDINGS))
    def letter(self, way: Way, some: list[str], ending: str) -> None:
        write(self.play, way, some, ending)
