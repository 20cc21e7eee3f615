"""One history: connections, the blocks on them, and what the user's code is told at the end of each."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import border_steps  # noqa: F401 - steps are found by their names
import border_steps_drivers  # noqa: F401
from border_drivers import FAULTS, Died
from border_hand import Hand
from border_kinds import Kind, Seat
from border_model import Attempt, Fates, Journal, Letter

import tallystick
from tallystick.core.errors import OutcomeUnknown

MODES: dict[str, dict[str, Any]] = {
    "late": {},
    "early": {"prepare": "early"},
    "outbox": {"mode": "outbox"},
    "dedup": {"mode": "consumer-dedup"},
}
ENDINGS = ("return", "return", "return", "raise", "tx.commit", "vanish", *FAULTS)

_plays = itertools.count()


class Oops(Exception):
    """What the user's code fails with."""


@dataclass
class OpenBlock:
    tx: Any
    hand: Hand
    told: bool = False


class Play:
    def __init__(self, url: str, kind: Kind) -> None:
        self.kind = kind
        self.name = f"p{next(_plays)}-{uuid.uuid4().hex[:6]}"
        self.topic = f"out-{self.name}"
        self.client = tallystick.Client(url, group=f"group-{self.name}", wait=True)
        self.fates = Fates()
        self.attempts: list[Attempt] = []
        self.letters: list[Letter] = []
        self.open: dict[int, OpenBlock] = {}
        """By the number of their slot: a place in the user's code where one block runs after another."""
        self.seats: list[Seat] = []
        self._seat_of: dict[int, Seat] = {}
        self._own_gids: list[tuple[str, str, int]] = []
        self._names = itertools.count()

    def end_all(self) -> None:
        """The user's code is over: what it has left open is abandoned."""
        while self.open:
            self.leave(self.open.popitem()[1], "vanish")
        self._close_seats()

    def close(self) -> None:
        self.client.close()
        self._close_seats()

    def _close_seats(self) -> None:
        while self.seats:
            self.kind.close(self.seats.pop())

    # Connections

    def seat(self, slot: int, place: int, variant: str, *, fresh: bool) -> Seat:
        """The connection of a slot: the one it had, if that can be used any more and no other one is wanted."""
        kept = self._seat_of.get(slot)
        if kept is not None and self.kind.alive(kept) and not (fresh or kept.used_up):
            return kept
        if kept is not None:
            self.kind.close(kept)
        seat = self._seat_of[slot] = self.open_seat(self.kind.place_of(slot, place), variant)
        return seat

    def open_seat(self, place: int, variant: str) -> Seat:
        seat = self.kind.open(place, variant)
        self.seats.append(seat)
        return seat

    def would_wait(self, place: int) -> bool:
        """Whether a block there could only wait for one of ours that is open."""
        return self.kind.one_writer and any(block.hand.seat.place == place for block in self.open.values())

    def gid(self, wanted: str, mode: str, seat: Seat) -> str | None:
        """`own`: a new name of the user's; `again`: the last one that was used for this kind of block in this place;
        `elsewhere`: the same in the other place, as two tenants do who number their orders alike. (Not in outbox mode,
        where the broker takes it for a repetition.)"""
        if wanted == "none" or mode == "dedup":
            return None
        family = "outbox" if mode == "outbox" else "check-back"
        place = 1 - seat.place if wanted == "elsewhere" and mode != "outbox" else seat.place
        known = [gid for gid, *where in self._own_gids if where == [family, place]]
        if wanted != "own" and known:
            return known[-1]
        gid = f"order-{self.name}-{next(self._names)}"
        self._own_gids.append((gid, family, seat.place))
        return gid

    # Blocks

    def new_attempt(self, mode: str, seat: Seat, subject: str = "") -> Attempt:
        name = f"{self.name}.{next(self._names)}"
        attempt = Attempt(name, subject or name, mode, Journal(self.fates, seat.autocommit))
        self.attempts.append(attempt)
        return attempt

    def enter(
        self, seat: Seat, mode: str, gid: str | None = None, *, before: bool = False, early: str = "send"
    ) -> OpenBlock | None:
        """A block, entered; None if that was refused. `before`: the user has begun a transaction by then. `early` is
        what it prepares early: messages know when they were sent, so those of two attempts differ; calls do not."""
        attempt = self.new_attempt(mode, seat, gid or "")
        hand = Hand(self, self.kind, seat, attempt, topic=self.topic)
        if before:
            _write_before(hand)
        hand.tx = self.client.transaction(seat.conn, gid=gid, **MODES[mode])
        block = OpenBlock(hand.tx, hand)
        try:
            hand.tx.__enter__()
        except Exception as failure:
            attempt.note("refused", failure)
            attempt.refused()
            return None
        if mode == "early":
            return self._prepared(block, early)
        attempt.journal.begun()
        return block

    def _prepared(self, block: OpenBlock, what: str) -> OpenBlock | None:
        block.hand.do(what)
        try:
            block.tx.prepare()
        except Exception as failure:
            block.hand.attempt.note("not prepared", failure)
            self._exit(block, failure)
            return None
        block.hand.attempt.journal.begun()
        return block

    def leave(self, block: OpenBlock, how: str) -> None:
        hand = block.hand
        hand.attempt.log.append(how)
        if how == "vanish":
            self.kind.close(hand.seat)
            hand.attempt.cut_off(committed=False)
            self._over(block)
            return
        if how in FAULTS:
            self.kind.arm(hand.seat, how)
        if how == "tx.commit":
            self._end(block, block.tx.commit)
            hand.do("insert")
        self._exit(block, Oops("no money") if how == "raise" else None)

    def _exit(self, block: OpenBlock, failure: Exception | None) -> None:
        kind = None if failure is None else type(failure)
        self._end(block, lambda: block.tx.__exit__(kind, failure, None), failure)
        self._over(block)

    def _end(self, block: OpenBlock, end: Callable[[], Any], failure: Exception | None = None) -> None:
        attempt = block.hand.attempt
        raw = self._raw(block.hand.seat)
        told: BaseException | None = failure
        try:
            end()
        except (Exception, Died) as raised:
            attempt.note("told", raised)
            told = raised
        if getattr(raw, "fault", None):
            raw.fault = None
        if not block.told:
            block.told = True
            _conclude(attempt, told, getattr(raw, "fired", None))

    def _raw(self, seat: Seat) -> Any:
        with suppress(Exception):
            return self.kind.raw(seat)
        return None

    def _over(self, block: OpenBlock) -> None:
        attempt = block.hand.attempt
        if attempt.sends:
            attempt.gid = block.tx.gid

    def can_enter(self, tx: Any) -> bool:
        try:
            tx.__enter__()
        except Exception:
            return False
        return True


def _write_before(hand: Hand) -> None:
    """The user's own transaction, which the block joins, with a savepoint to go back to."""
    with suppress(Exception):
        hand.before = hand.insert()
        hand.run("savepoint before_block")


def _conclude(attempt: Attempt, told: BaseException | None, fired: str | None) -> None:
    if fired:
        attempt.cut_off(committed=fired != "lost before")
    elif told is None:
        attempt.ended_well()
    elif isinstance(told, OutcomeUnknown):
        attempt.left_unknown()
    else:
        attempt.ended_badly()
