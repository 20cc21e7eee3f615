"""What must be true: the fate of each row, and of the messages of each attempt, told from what the user's code did.

The model does not know what the library does. It knows what a connection does (a commit in the middle commits what was
written before it), what the user's code was told at the end, and, where a commit was cut off, on which side of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Fate = Literal["must", "never", "maybe"]
Truth = Literal["committed", "rolled back", "ask"]
"""`ask`: the user's code has committed by itself what may have been the mark, so the barrier has the word."""


class Fates:
    """Of every row that was written anywhere."""

    def __init__(self) -> None:
        self.rows: dict[str, Fate] = {}

    def set(self, rows: list[str], fate: Fate) -> None:
        self.rows.update(dict.fromkeys(rows, fate))

    def broken(self, found: set[str]) -> list[str]:
        missing = [f"row {row} is missing" for row, fate in self.rows.items() if fate == "must" and row not in found]
        return missing + [f"row {row} is there" for row, fate in self.rows.items() if fate == "never" and row in found]


class Journal:
    """What the open transaction of a connection holds."""

    def __init__(self, fates: Fates, autocommit: bool) -> None:
        self._fates = fates
        self._autocommit = autocommit
        self._loose = autocommit
        self._held: list[str] = []
        self._before_the_end: list[str] = []
        self.ended = False
        """Whether the transaction of the block was surely ended inside it."""
        self.committed_inside = False

    def begun(self) -> None:
        """The block has begun; from here on even an autocommitting connection is in a transaction."""
        self._loose = False

    @property
    def held(self) -> list[str]:
        return list(self._held)

    def wrote(self, row: str) -> None:
        if self._loose:
            self._fates.set([row], "maybe")
        else:
            self._held.append(row)

    def undid(self, *rows: str) -> None:
        """By a savepoint: the transaction goes on."""
        for row in rows:
            if row in self._held:
                self._held.remove(row)
                self._fates.set([row], "never")

    def committed_by_user(self) -> None:
        self.committed_inside = True
        self._end("maybe")

    def rolled_back_by_user(self) -> None:
        self._end("never")

    def _end(self, fate: Fate) -> None:
        self._before_the_end += self._held
        self.settle(fate)
        self.ended = True
        self._loose = self._autocommit

    def settle(self, fate: Fate) -> None:
        """All that is held. A block that has worked has worked as a whole, whatever became of its first part."""
        if fate == "must":
            self._fates.set(self._before_the_end, fate)
        self._fates.set(self._held, fate)
        self._held = []

    def over(self) -> None:
        self._loose = True


@dataclass
class Attempt:
    """One block, or one call of a handler. `name` is the name of its rows, `subject` that of its messages."""

    name: str
    subject: str
    mode: str
    journal: Journal
    gid: str = ""
    letter: str = ""  # the one that a handler was given
    sent: list[str] = field(default_factory=list)
    called: bool = False
    truth: Truth = "rolled back"
    told: str = "open"  # what the user's code was told: ok, failed, unknown
    log: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} ({self.mode}, {self.subject}) {self.told}: {'; '.join(self.log)}"

    @property
    def sends(self) -> bool:
        return bool(self.sent or self.called)

    def new_message(self) -> str:
        return f"{self.subject}#{len(self.sent)}"

    def note(self, what: str, failure: BaseException) -> None:
        self.log.append(f"{what}: {type(failure).__name__}: {str(failure)[:60]}")

    def refused(self) -> None:
        """Before it had begun; what the user had written before it is the user's business."""
        self.told = "failed"
        self.journal.settle("maybe")

    def ended_well(self) -> None:
        self.told, self.truth = "ok", "committed"
        self._over("must")

    def ended_badly(self) -> None:
        """An early mark may have gone with a commit of the user's own."""
        asked = self.mode == "early" and self.journal.committed_inside
        self.told, self.truth = "failed", "ask" if asked else "rolled back"
        self._over("never")

    def cut_off(self, *, committed: bool) -> None:
        """Nobody was told anything, or that nobody knows; here it is known all the same."""
        if committed:
            self.ended_well()
        else:
            self.ended_badly()
        self.told = "unknown"

    def left_unknown(self) -> None:
        self.told, self.truth = "unknown", "ask"
        self._over("maybe")

    def _over(self, fate: Fate) -> None:
        """Whatever is written on the connection from here on belongs to nobody."""
        self.journal.settle(fate)
        self.journal.over()


def broken_blocks(attempts: list[Attempt], visible: set[str], barrier: dict[str, str]) -> list[str]:
    """`barrier` has what each gid came to, in the service's own database."""
    found = [
        f"{one.name} returned without an error, although its transaction had been ended inside"
        for one in attempts
        if one.told == "ok" and one.journal.ended
    ]
    subjects: dict[str, list[Attempt]] = {}
    for one in attempts:
        subjects.setdefault(one.subject, []).append(one)
    for subject, group in subjects.items():
        got = {message for message in visible if message.partition("#")[0] == subject}
        found += _broken_subject(subject, group, got, barrier)
    return found


def _broken_subject(subject: str, group: list[Attempt], got: set[str], barrier: dict[str, str]) -> list[str]:
    """All attempts under one gid, or a single one under a gid of its own."""
    committed = [one for one in group if one.truth == "committed" and one.sends]
    if len(committed) > 1:
        return [f"{subject}: more than one attempt has committed: {[one.name for one in committed]}"]
    # Of several attempts of which one may have committed by itself, only the database knows which.
    asked = [one for one in group if one.truth == "ask" and barrier.get(one.gid) == "committed"]
    wanted = [sorted(one.sent) for one in committed or asked] or [[]]
    return [] if sorted(got) in wanted else [f"{subject}: visible are {sorted(got)}, not {wanted}"]


def broken_outcomes(attempts: list[Attempt], barrier: dict[str, str], broker: dict[str, str | None]) -> list[str]:
    """The broker says what the barrier says; of a gid that it does not know nothing was prepared. (A block with a name
    that sends nothing has a row in the barrier, and no broker has heard of it.)"""
    found = []
    for gid in dict.fromkeys(one.gid for one in attempts if one.gid and one.mode in ("late", "early")):
        said, true = broker.get(gid), barrier.get(gid)
        if said is None and not any(one.sends for one in attempts if one.gid == gid and one.told != "failed"):
            continue
        if (said == "committed") != (true == "committed"):
            found.append(f"{gid} is {said} at the broker, and {true} in the barrier")
    return found


@dataclass
class Letter:
    """A message for a handler, and how often it was tried. Attempts after the first do nothing out of the ordinary."""

    name: str
    way: tuple[str, str, int]
    steps: list[str]
    ending: str
    id: str = ""
    offset: int = 1 << 62
    attempts: list[Attempt] = field(default_factory=list)
    seals: dict[str, str] = field(default_factory=dict)
    """The last row of each attempt that came to its end, where it was written in a transaction."""


def broken_letter(letter: Letter, rows: set[str], visible: set[str], noted: bool) -> list[str]:
    """Its effect is there once, and with it its messages and what remembers it (`noted`)."""
    done = [one for one in letter.attempts if letter.seals.get(one.name) in rows]
    excused = any(one.journal.committed_inside for one in letter.attempts)
    found = [f"{letter.name} has its effect {len(done)} times"] if len(done) > 1 or not (done or excused) else []
    if not noted:
        found.append(f"{letter.name} is done, and the inbox or the offset does not know")
    for one in letter.attempts:
        took_effect = one in done
        if took_effect and one.journal.ended:
            found.append(f"{one.name} took effect, although its transaction had been ended inside")
        found += [f"row {row} of {one.name} alone" for row in one.journal.held if (row in rows) != took_effect]
        got = {message for message in visible if message.partition("#")[0] == one.subject}
        if got != (set(one.sent) if took_effect else set()):
            found.append(f"{one.name}: took effect: {took_effect}, sent {one.sent}, visible {sorted(got)}")
    return found
