"""A scripted client that survives its broker, and the checker of what it was promised.

The script does every kind of write once or more, in order. When the broker dies, the step under way is *unknown*;
the script goes on by repeating it, as a client would. At the end, what the client was told and what the broker shows
are compared as sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tallystick.core.errors import TallystickError
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    Check,
    ClientOp,
    Commit,
    Nack,
    OpResult,
    PartRef,
    Prepare,
    PreparePart,
    Rollback,
    Send,
)
from tallystick.core.wire import Delivery

TOPIC = "orders"
GROUP = "shop"
Identity = tuple[str, int, bytes]  # gid, sequence, value


class Broken(Exception):
    """The broker died under a request: it may have acted, or not."""


class Link(Protocol):
    """A way to a broker; raises `Broken` when that dies."""

    def do(self, op: ClientOp) -> OpResult: ...

    def receive(self) -> list[Delivery]: ...

    def due(self) -> list[str]:
        """The transactions that the broker asks about."""

    def messages(self) -> list[StoredMessage]: ...

    def state(self, gid: str) -> str | None: ...


def message(gid: str, number: int) -> OutgoingMessage:
    return OutgoingMessage(TOPIC, f"{gid}.{number}".encode(), key=gid)


def identity(found: StoredMessage) -> Identity:
    return found.gid, found.sequence, found.value


def prepare(gid: str, count: int = 1, after_ms: int | None = None) -> Prepare:
    return Prepare(gid, GROUP, [message(gid, number) for number in range(count)], Check(after_ms=after_ms))


# What the script decides, and so what must be visible at the end.
COMMITTED = {"c1": 2, "c2": 1, "sent": 2, "parts": 3, "asked-yes": 1, "late": 1}
ROLLED_BACK = {"r1", "r2", "asked-no", "never"}


@dataclass
class Told:
    """What the client knows: the outcomes it was told, and the messages that it settled."""

    outcomes: dict[str, str] = field(default_factory=dict)
    settled: set[Identity] = field(default_factory=set)
    maybe_settled: set[Identity] = field(default_factory=set)
    seen: dict[tuple[int, int], Identity] = field(default_factory=dict)
    broken: int = 0


class Script:
    def __init__(self, link: Link, told: Told) -> None:
        self.link, self.told = link, told

    def steps(self) -> list[Callable[[], None]]:
        return [
            self._does(prepare("c1", 2)),
            self._does(Commit("c1"), "c1", "committed"),
            self._does(prepare("r1")),
            self._does(Rollback("r1"), "r1", "rolled_back"),
            self._does(prepare("late")),
            self._does(Send([message("sent", 0), message("sent", 1)], "sent"), "sent", "committed"),
            self.consume,
            self._does(prepare("asked-yes", after_ms=0)),
            self._does(prepare("asked-no", after_ms=0)),
            self.answer,
            self._does(PreparePart("p1", [message("parts", 0), message("parts", 1)])),
            self._does(PreparePart("p2", [message("parts", 2)])),
            self._does(Commit("parts", [PartRef("p1", 2), PartRef("p2", 1)]), "parts", "committed"),
            self._does(Rollback("never"), "never", "rolled_back"),
            self._does(prepare("c2")),
            self._does(prepare("r2")),
            self._does(Commit("c2"), "c2", "committed"),
            self.consume,
            self._does(Rollback("r2"), "r2", "rolled_back"),
            self._does(Commit("late"), "late", "committed"),
            self.look,
        ]

    def _does(self, op: ClientOp, gid: str = "", outcome: str = "") -> Callable[[], None]:
        def step() -> None:
            self.link.do(op)
            if gid:
                self.told.outcomes[gid] = outcome

        return step

    def consume(self) -> None:
        """Receive, settle some, give one back."""
        self.look()
        for number, delivery in enumerate(self.link.receive()):
            what = identity(delivery.message)
            assert what not in self.told.settled, f"{what} came again after its acknowledgement was confirmed"
            if number % 3 == 2:
                self.link.do(Nack("g", [delivery.receipt], delay_ms=0))
                continue
            self.told.maybe_settled.add(what)
            self.link.do(Ack("g", [delivery.receipt]))
            self.told.settled.add(what)

    def answer(self) -> None:
        truth = {"asked-yes": "committed", "asked-no": "rolled_back"}
        for _ in range(20):
            for gid in self.link.due():
                if gid in truth:
                    self.link.do(AnswerChecks({gid: truth[gid]}))  # type: ignore[dict-item]
            if not any(self.link.state(gid) == "prepared" for gid in truth):
                break
        else:
            raise AssertionError("the broker does not ask, or does not hear the answers")
        self.told.outcomes |= truth

    def look(self) -> None:
        """What a reader has seen stays where it is."""
        for found in self.link.messages():
            place = (found.queue, found.offset)
            assert self.told.seen.setdefault(place, identity(found)) == identity(found), f"{place} changed"


def play(told: Told, connect: Callable[[], Link], mend: Callable[[], None]) -> Link:
    """Run the script to its end, repeating the step under way each time the broker dies."""
    link = connect()
    done = 0
    while done < len(Script(link, told).steps()):
        try:
            Script(link, told).steps()[done]()
            done += 1
        except Broken:
            told.broken += 1
            mend()
            link = connect()
            assert_kept(told, link)
    return link


def assert_kept(told: Told, link: Link) -> None:
    """Right after a recovery: everything that was confirmed is there, as it was told."""
    for gid, outcome in told.outcomes.items():
        assert link.state(gid) == outcome, f"{gid} was confirmed as {outcome}"
    found = Counter(map(identity, link.messages()))
    for gid, outcome in told.outcomes.items():
        expected = {(gid, n, f"{gid}.{n}".encode()) for n in range(COMMITTED.get(gid, 0))}
        shown = {what for what in found if what[0] == gid}
        assert shown == (expected if outcome == "committed" else set()), f"{gid} is {outcome}"
    assert set(found.values()) <= {1}, f"twice: {[what for what, count in found.items() if count > 1]}"
    places = {(one.queue, one.offset): identity(one) for one in link.messages()}
    lost = {place: what for place, what in told.seen.items() if places.get(place) != what}
    assert not lost, f"a reader saw what is not there any more: {lost}"


def assert_complete(told: Told, link: Link, drain: Callable[[], list[Delivery]]) -> None:
    """At the end: one outcome each, the visible messages are exactly the committed ones, once each."""
    expected = dict.fromkeys(COMMITTED, "committed") | dict.fromkeys(ROLLED_BACK, "rolled_back")
    assert told.outcomes == expected
    assert {gid: link.state(gid) for gid in expected} == expected
    assert_kept(told, link)
    wanted = {(gid, number, f"{gid}.{number}".encode()) for gid, count in COMMITTED.items() for number in range(count)}
    found = [identity(one) for one in link.messages()]
    assert set(found) == wanted
    assert len(found) == len(wanted)
    again = {identity(one.message) for one in drain()}
    assert not again & told.settled, "a confirmed acknowledgement was forgotten"
    assert wanted - told.maybe_settled <= again, "a message is neither settled nor delivered"
    for gid in expected:
        _assert_single_outcome(link, gid, expected[gid])


def _assert_single_outcome(link: Link, gid: str, outcome: str) -> None:
    contrary: Any = Rollback(gid) if outcome == "committed" else Commit(gid)
    try:
        link.do(contrary)
    except TallystickError as error:
        assert error.code == "outcome_conflict", (gid, error)  # noqa: PT017 - other errors are told as what they are
    else:
        raise AssertionError(f"{gid} changed from {outcome}")
