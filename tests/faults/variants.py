"""The ways to run a transaction, and every moment of each: known here, so that a new step cannot go untested."""

from __future__ import annotations

from typing import NamedTuple

_BEGIN = ["before local begin", "after local begin"]
_MARK = ["before mark", "after mark"]
_PUT = ["before put", "after put"]
_PROOF = ["before proof", "after proof"]
_WHERE = ["before whereabouts", "after whereabouts"]
_ROLLBACK = ["before local rollback", "after local rollback"]
_CHANGE = ["business change", "message added"]
_BROKER = ["before broker", "after broker"]
_STATEMENT = ["before statement", "after statement"]
_PREPARE = ["before broker", "prepare request in flight", "prepare request answered", "after broker"]
_SEND = ["before broker", "send request in flight", "send request answered", "after broker"]
_COMMIT = ["before local commit", "local commit in flight", "after local commit"]
_TELL = ["before broker", "commit request in flight", "commit request answered", "after broker"]
_REQUEST_ROLLBACK = ["rollback request in flight", "rollback request answered"]
_DELETE = ["before deletion", "after deletion"]


class Variant(NamedTuple):
    """A way to run a transaction, and every moment of it in order, as they must be found."""

    mode: str
    prepare: str
    asynchronous: bool
    moments: list[str]
    own_gid: bool = False
    """Whether the service names the transaction itself."""
    refused: bool = False
    """Whether the block raises after its change."""
    wait: bool = True
    """Whether the block stays for the broker after its local commit."""
    experienced: bool = False
    """Whether the process has run blocks before: it knows its database, and prepares while it marks."""

    @property
    def ordered(self) -> bool:
        """Whether all moments are of one thread. What a block does not wait for comes from another."""
        return self.wait and not self.refused and not (self.experienced and self.asynchronous)


# The first block of a process learns a way into its database, and begins to answer for it. Before it makes a gid it
# learns what the broker's store is called.
_LEARN = _STORE = _BROKER
_LATE = [*_BEGIN, *_CHANGE, *_STORE, *_MARK, *_LEARN, *_BROKER, *_PREPARE, *_COMMIT, *_TELL, "end"]
# A later block has nothing to learn, and its half messages are on their way while it marks.
_LATER = [*_BEGIN, *_CHANGE, *_BROKER, *_MARK, *_PREPARE, *_COMMIT, *_TELL, "end"]
# Which database it is can be asked only in a transaction, which is given up before the broker is told.
_EARLY = ["message added", *_BEGIN, *_WHERE, *_LEARN, *_ROLLBACK, *_BROKER, *_STORE, *_PREPARE]
_EARLY += [*_BEGIN, *_STATEMENT, "business change"]
# The block has returned, and the broker is told behind its back.
_RETURNED = [*_BROKER, "commit request in flight", "commit request answered", "end"]
_DRIVE = [*_LEARN, *_BROKER]
_OUTBOX = [*_COMMIT, *_SEND, *_DELETE, "end"]

VARIANTS = {
    "late": Variant("check-back", "late", False, _LATE),
    "late-async": Variant("check-back", "late", True, _LATE),
    "later": Variant("check-back", "late", False, _LATER, experienced=True),
    "later-async": Variant("check-back", "late", True, _LATER, experienced=True),
    "returned": Variant("check-back", "late", False, [*_LATE[: -len(_RETURNED)], *_RETURNED], wait=False),
    "returned-async": Variant("check-back", "late", True, [*_LATE[: -len(_RETURNED)], *_RETURNED], wait=False),
    "early": Variant("check-back", "early", False, [*_EARLY, *_PROOF, *_COMMIT, *_TELL, "end"]),
    # The barrier is asked what became of the mark, which is no moment of the broker's but on its loop. The broker is
    # told of the rollback in the background: the order of the last moments is not fixed.
    "refused": Variant(
        "check-back", "early", False, [*_EARLY, *_ROLLBACK, *_BROKER, *_BROKER, *_REQUEST_ROLLBACK, "end"], refused=True
    ),
    "outbox": Variant("outbox", "late", False, [*_BEGIN, *_CHANGE, *_STORE, *_PUT, *_DRIVE, *_OUTBOX]),
    "outbox-returned": Variant(
        "outbox", "late", False, [*_BEGIN, *_CHANGE, *_STORE, *_PUT, *_DRIVE, *_OUTBOX], wait=False
    ),
    "outbox-gid": Variant(
        "outbox",
        "late",
        False,
        [*_BEGIN, *_STATEMENT, *_CHANGE, *_MARK, *_STATEMENT, *_DRIVE, *_OUTBOX],
        own_gid=True,
    ),
    "consumer-dedup": Variant(
        "consumer-dedup",
        "late",
        False,
        [*_BEGIN, *_CHANGE, *_STORE, *_PUT, *_DRIVE, *_SEND, *_OUTBOX],
    ),
}


def moments_of(variant: str, engine: str, *, named: bool = False) -> list[str]:
    """SQLite commits inside the process: there is no moment at which only a server knows. Under a name of the
    service's own the barrier is asked first what an earlier attempt has come to, and no gid is made."""
    found = VARIANTS[variant].moments
    if named and VARIANTS[variant].mode == "check-back":
        begun = found.index("after local begin") + 1
        gid = found.index("before mark") if "before mark" in found else found.index("prepare request in flight") - 1
        found = [*found[:begun], *_STATEMENT, *found[begun : gid - len(_STORE)], *found[gid:]]
    return [name for name in found if name != "local commit in flight"] if engine == "sqlite" else found


def is_committed(moments: list[str], at: int) -> bool | None:
    """Whether the local transaction is committed at a moment; None while the server is at it."""
    if "after local commit" not in moments:
        return False
    if moments[at - 1] == "local commit in flight":
        return None
    return at - 1 >= moments.index("after local commit")


def last_index(moments: list[str], name: str) -> int:
    return len(moments) - 1 - moments[::-1].index(name)
