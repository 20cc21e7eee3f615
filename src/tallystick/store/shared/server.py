"""What a database server must do for one store, and nothing else.

A store is a number: one server holds many. Each has a *fence*, which says who owns it. Whoever claims it raises the
epoch; every unit of changes names the epoch and the number of units before it, and the server refuses it, in the same
atomic unit, if its fence says anything else. So an owner that was superseded writes nothing, whatever it believes, and
a unit whose answer was lost is found out by its number.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from tallystick.store.kv.engine import Area, Changes, Found, Wanted

LOCKED = "another session holds a lock on a table of this store"
SESSIONS_NAME = "tallystick"  # what a server's lists of its sessions show, unless the URL says otherwise


class Fence(Struct, frozen=True):
    """Who may write to a store: the owner's epoch, and how many units were written since the store was made."""

    epoch: int
    unit: int
    owner: str


class ServerAway(Exception):
    """No answer from the server, or a refusal that is not about the fence. Whether it acted is unknown, except where
    `full` says that the server refused a write for lack of room: then nothing was stored."""

    def __init__(self, reason: str, full: bool = False) -> None:
        """On one line, as a log has it: drivers break theirs."""
        self.reason = " ".join(reason.split())
        self.full = full
        super().__init__(self.reason)


class SharedServer(Protocol):
    """One store on a server. Any thread may look; one thread at a time writes. Every method but `cut` and `close`
    raises `ServerAway` if the server cannot be asked; the next call connects again."""

    @property
    def trips(self) -> int:
        """How many round trips were made, by anybody."""

    def create(self) -> None:
        """Make sure of the tables, if there are such things. May be called by many at once, and again."""

    def fence(self) -> Fence | None:
        """The fence as it is once every write that has reached the server is through; None if the store was never
        claimed."""

    def claim(self, owner: str) -> Fence:
        """Raise the epoch by one: from then on nobody writes but who knows the fence that is told here. The first
        claim makes the store, with epoch 1 and unit 0."""

    def look_up(self, wanted: Wanted) -> Found:
        """The values of these keys, None for those that are not there. One round trip."""

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        """Keys and values in [start, end), in order, from the lowest up or from the highest down: `limit` of them, or
        fewer if the values before the last one sum up to `max_bytes` or more (at least one is told), or if there are
        no more."""

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        """If the fence is exactly this epoch and unit: one atomic, durable unit that raises `unit` by one, deletes the
        ranges, then sets and deletes the keys. False if it is another one, and then nothing has changed. One round
        trip, unless there are ranges."""

    def weaknesses(self) -> list[str]:
        """Settings under which the server may lose what it has acknowledged, each as a sentence for an operator."""

    def cut(self) -> None:
        """Drop the connections: what they wait for is not waited for any longer."""

    def close(self) -> None: ...
