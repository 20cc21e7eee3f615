"""What the crash matrix and the stop matrix share: the ways to run a transaction, their moments, and who lives on.

Around the producers that die or stop there are: one broker, one database, one live member of the producer group that
answers check-backs and re-drives the outbox, and two consumers with databases of their own, one for each exactly-once
way.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from history import History
from looking import BrokerView, eventually
from nursery import Child, Nursery
from places import Place, sqlite_place

import tallystick
from tallystick.barrier.queries import COMMITTED, ROLLED_BACK

BROKER = {
    "check_interval": "200ms",
    "check_interval_cap": "1s",
    "check_timeout": "2s",
    "max_checks": 1000,
    "redelivery_first": "100ms",
    "redelivery_cap": "1s",
}

_BEGIN = ["before local begin", "after local begin"]
_CHANGE = ["business change", "message added"]
_BROKER = ["before broker", "after broker"]
_STATEMENT = ["before statement", "after statement"]
_PREPARE = ["before broker", "prepare request in flight", "prepare request answered", "after broker"]
_SEND = ["before broker", "send request in flight", "send request answered", "after broker"]
_COMMIT = ["before local commit", "local commit in flight", "after local commit"]
_TELL = ["before broker", "commit request in flight", "commit request answered", "after broker"]
_DELETE = ["before deletion", "after deletion"]


class Variant(NamedTuple):
    """A way to run a transaction, and every moment of it in order, as they must be found."""

    mode: str
    prepare: str
    asynchronous: bool
    moments: list[str]


_LATE = [*_BEGIN, *_CHANGE, *_BROKER, *_PREPARE, *_STATEMENT, *_COMMIT, *_TELL, "end"]
_EARLY = ["message added", *_BROKER, *_PREPARE, *_BEGIN, *_STATEMENT, "business change"]

VARIANTS = {
    "late": Variant("check-back", "late", False, _LATE),
    "late-async": Variant("check-back", "late", True, _LATE),
    "early": Variant("check-back", "early", False, [*_EARLY, *_STATEMENT, *_COMMIT, *_TELL, "end"]),
    "outbox": Variant(
        "outbox", "late", False, [*_BEGIN, *_CHANGE, *_BROKER, *_STATEMENT, *_COMMIT, *_SEND, *_DELETE, "end"]
    ),
    "consumer-dedup": Variant(
        "consumer-dedup",
        "late",
        False,
        [*_BEGIN, *_CHANGE, *_BROKER, *_SEND, *_STATEMENT, *_COMMIT, *_SEND, *_DELETE, "end"],
    ),
}


def moments_of(variant: str, engine: str) -> list[str]:
    """SQLite commits inside the process: there is no moment at which only a server knows."""
    found = VARIANTS[variant].moments
    return [name for name in found if name != "local commit in flight"] if engine == "sqlite" else found


def is_committed(moments: list[str], at: int) -> bool | None:
    """Whether the local transaction is committed at a moment; None while the server is at it."""
    if moments[at - 1] == "local commit in flight":
        return None
    return at - 1 >= moments.index("after local commit")


class Ground:
    """Everything of one engine that lives on."""

    def __init__(self, url: str, place: Place, crew: Nursery, directory: Path, check_after: float) -> None:
        self.url, self.place, self.crew = url, place, crew
        self.view = BrokerView(url)
        unique = uuid.uuid4().hex[:8]  # one broker serves several tests
        self.group = f"producers-{unique}"
        self.topic = f"topic-{unique}"
        self._check_after = check_after
        self._directory = directory
        self.effects: dict[str, Place] = {}

    def produce(self, variant: str, at: int, name: str, place: Place | None = None, **more: Any) -> Child:
        """A producer process that runs one transaction."""
        mode, prepare, asynchronous, _ = VARIANTS[variant]
        how = {"mode": mode, "prepare": prepare, "asynchronous": asynchronous, "check_after": self._check_after}
        where = {"url": self.url, "group": self.group, "topic": self.topic, "place": place or self.place}
        return self.crew.start("produce", id=name, at=at, **how, **where, **more)

    @contextlib.contextmanager
    def living(self, consume_from: str | None = None) -> Iterator[tallystick.Client]:
        """The live member and the consumers, these perhaps by way of another address."""
        with (
            tallystick.Client(self.url, group=self.group, database=self.place.connect) as member,
            tallystick.Client(consume_from or self.url) as consumers,
        ):
            for by in ("inbox", "offset"):
                self._consume(consumers, by)
            consumers.start()
            yield member

    def _consume(self, client: tallystick.Client, by: Any) -> None:
        place = self.effects[by] = sqlite_place(self._directory / f"effects-{self.place.engine}-{by}.db")

        # A short lease: on a network that loses answers, messages are lent to nobody.
        @client.subscribe(self.topic, group=f"{self.topic}-{by}", exactly_once=place.connect, by=by, invisible=2.0)
        def apply(message: tallystick.Message, connection: Any) -> None:
            place.run(connection, "insert into effect values (%s, %s)", message.text, by)

    def committed(self) -> set[str]:
        """The ids of the business changes that are there; each was tried once."""
        return {row[0] for row in self.place.rows("select id from business")}

    def settle(self, committed: set[str], places: list[Place] | None = None) -> None:
        """Wait until nothing is pending anywhere and every effect is there, then look for what must not be."""
        once = Counter(dict.fromkeys(committed, 1))
        for by, place in self.effects.items():
            eventually(lambda place=place: effects_of(place), once)
            eventually(lambda by=by: self.view.unsettled(f"{self.topic}-{by}"), 0)
        eventually(lambda: self.view.pending(self.group), [])
        for place in places or [self.place]:
            eventually(lambda place=place: place.rows("select gid from tallystick_outbox"), [])
        assert {by: effects_of(place) for by, place in self.effects.items()} == dict.fromkeys(self.effects, once)
        sent = Counter((message["gid"], message["sequence"]) for message in self.view.log(self.topic))
        assert [one for one, times in sent.items() if times > 1] == []

    def pending(self, places: list[Place] | None = None) -> set[str]:
        """What is not decided, not sent or not settled."""
        left = {one["gid"] for one in self.view.pending(self.group)}
        for place in places or [self.place]:
            left |= {row[0] for row in place.rows("select gid from tallystick_outbox")}
        # By offset, the consumer's own database knows what is settled; the broker is only shown it now and then.
        if self.view.unsettled(f"{self.topic}-inbox"):
            left.add("inbox")
        return left

    def rest(self, quiet: float, seconds: float = 60.0) -> None:
        """Wait until nothing has been pending for `quiet` seconds, or the time is up: then the checker will say so."""
        deadline = time.monotonic() + seconds
        since = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < quiet:
            if self.pending() or any(self.committed() - set(effects_of(place)) for place in self.effects.values()):
                since = time.monotonic()
            time.sleep(0.1)

    def history(self, told: dict[str, str], by: str) -> History:
        """What callers were told (`ok`, `failed`, `unknown`), and what there is."""
        return History(
            tried=set(told),
            ok={name for name, outcome in told.items() if outcome == "ok"},
            failed={name for name, outcome in told.items() if outcome == "failed"},
            rows=Counter(row[0] for row in self.place.rows("select id from business")),
            effects=effects_of(self.effects[by]),
            outcomes=outcomes_of(self.view, self.group, self.place),
            pending=self.pending(),
        )

    def outcomes_agree(self, places: list[Place] | None = None) -> Counter[tuple[str, str]]:
        """One outcome for each gid: what the broker says is what the barrier says. (outcome, by whom) and how often."""
        told = {one["gid"]: one for one in self.view.transactions(group=self.group)}
        truth: dict[str, str] = {}
        for place in places or [self.place]:
            truth |= dict(place.rows("select gid, reason from tallystick_barrier"))
        assert set(truth) <= set(told)
        names = {COMMITTED: "committed", ROLLED_BACK: "rolled_back"}
        # A transaction that its producer rolled back, or that never came to the barrier, has no row.
        expected = {gid: names[truth[gid]] if gid in truth else "rolled_back" for gid in told}
        assert {gid: one["state"] for gid, one in told.items()} == expected
        return Counter((one["state"], one["resolved_by"]) for one in told.values())


def acquaint(member: tallystick.Client, place: Place, mode: Any = "check-back") -> None:
    """A member answers for a database under the name by which it has worked with it itself."""
    with contextlib.closing(place.connect()) as connection, member.transaction(connection, mode=mode) as tx:
        tx.send("acquaintance", "hello")


def outcomes_of(view: BrokerView, group: str, place: Place) -> dict[str, set[str]]:
    """Of each gid, what the broker says of it and what the barrier says."""
    names = {COMMITTED: "committed", ROLLED_BACK: "rolled_back"}
    found = {one["gid"]: {one["state"]} for one in view.transactions(group=group)}
    for gid, reason in place.rows("select gid, reason from tallystick_barrier"):
        found.setdefault(gid, set()).add(names[reason])
    return found


def effects_of(place: Place) -> Counter[str]:
    return Counter(row[0] for row in place.rows("select id from effect"))
