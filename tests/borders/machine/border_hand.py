"""What a user's code has in its hands in the middle of a block or a handler, and the things it can do, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from border_kinds import Kind, Seat
from border_model import Attempt

if TYPE_CHECKING:
    from border_play import Play


@dataclass
class Hand:
    play: Play
    kind: Kind
    seat: Seat
    attempt: Attempt
    tx: Any = None
    topic: str = ""
    rows: int = 0
    before: str | None = None
    """The row that was written before the block, with a savepoint after it."""
    went_back: bool = False

    def new_row(self) -> str:
        self.rows += 1
        return f"{self.attempt.name}.{self.rows}"

    def insert(self) -> str:
        row = self.new_row()
        self.kind.insert(self.seat.conn, row)
        self.attempt.journal.wrote(row)
        return row

    def run(self, sql: str) -> None:
        self.kind.run(self.seat.conn, sql)

    def do(self, name: str) -> None:
        """Errors are swallowed, as a careless user's code would."""
        step = STEPS[name]
        try:
            step(self)
        except Exception as failure:
            self.attempt.note(name, failure)
        else:
            self.attempt.log.append(name)


Step = Callable[[Hand], Any]

STEPS: dict[str, Step] = {"insert": Hand.insert}


def step(name: str) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS[name] = function
        return function

    return register
