"""A machine that composes at random what a user's code can do to a connection, a session and a gid."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from border_kinds import PLACES, Kind
from border_letters import ENDINGS as LETTER_ENDINGS
from border_letters import WAYS, Way, write
from border_play import ENDINGS, MODES, Play
from border_steps import steps_of
from border_verdict import broken
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

slots = st.integers(0, 2)
places = st.sampled_from(PLACES)
modes = st.sampled_from([*MODES, "late"])
gids = st.sampled_from(["none", "none", "own", "again", "elsewhere"])
endings = st.sampled_from(ENDINGS)
HOW: dict[str, st.SearchStrategy[Any]] = {"before": st.booleans(), "early": st.sampled_from(["send", "call"])}


class Broken(AssertionError):
    """Rows and messages do not agree."""


steps = st.runner().flatmap(lambda machine: st.sampled_from(steps_of(machine.kind)))
variants = st.runner().flatmap(lambda machine: st.sampled_from(machine.kind.variants))


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

    @rule(
        slot=slots,
        place=places,
        variant=variants,
        fresh=st.booleans(),
        mode=modes,
        gid=gids,
        how=st.fixed_dictionaries(HOW),
    )
    def enter(self, slot: int, place: int, variant: str, fresh: bool, mode: str, gid: str, how: dict[str, Any]) -> None:
        slot %= self.kind.slots
        if slot in self.play.open:
            self.play.leave(self.play.open.pop(slot), "return")
        seat = self.play.seat(slot, place, variant, fresh=fresh)
        block = self.play.enter(seat, mode, self.play.gid(gid, mode, seat), **how)
        if block is not None:
            self.play.open[slot] = block

    @rule(
        slot=slots,
        place=places,
        variant=variants,
        fresh=st.booleans(),
        mode=modes,
        gid=gids,
        how=st.fixed_dictionaries(HOW),
        some=st.lists(steps, min_size=1, max_size=5),
        ending=endings,
    )
    def block(self, some: list[str], ending: str, slot: int, **opening: Any) -> None:
        """A whole one."""
        self.enter(slot=slot, **opening)
        if self.play.open:
            self.leave(slot, some, ending)

    @precondition(lambda self: self.play.open)
    @rule(slot=slots, some=st.lists(steps, min_size=1, max_size=4))
    def act(self, slot: int, some: list[str]) -> None:
        for step in some:
            self.play.open[self._open_slot(slot)].hand.do(step)

    @precondition(lambda self: self.play.open)
    @rule(slot=slots, some=st.lists(steps, max_size=2), ending=endings)
    def leave(self, slot: int, some: list[str], ending: str) -> None:
        self.act(slot, some)
        self.play.leave(self.play.open.pop(self._open_slot(slot)), ending)

    def _open_slot(self, slot: int) -> int:
        known = sorted(self.play.open)
        return known[slot % len(known)]

    @precondition(lambda self: self.play.ended)
    @rule(which=st.integers(0, 20))
    def enter_again(self, which: int) -> None:
        """A transaction that has ended is entered a second time."""
        tx = self.play.ended[which % len(self.play.ended)]
        try:
            tx.__enter__()
        except Exception:
            return
        raise Broken("a transaction was entered a second time")

    @rule(
        way=st.sampled_from(WAYS), some=st.lists(steps, min_size=1, max_size=4), ending=st.sampled_from(LETTER_ENDINGS)
    )
    def letter(self, way: Way, some: list[str], ending: str) -> None:
        write(self.play, way, some, ending)
