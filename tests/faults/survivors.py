"""Who lives on while producers die or stop, and what is found afterwards.

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
from typing import Any

from broker_view import BrokerView
from history import History
from places import Place, sqlite_place
from variants import VARIANTS

import tallystick
from eventually import SECONDS as PATIENCE
from eventually import eventually_equal
from fork_server import Child, ForkServer
from tallystick.barrier.queries import COMMITTED, ROLLED_BACK

OUTCOMES = {COMMITTED: "committed", ROLLED_BACK: "rolled_back"}

BROKER = {
    "check_interval": "200ms",
    "check_interval_cap": "1s",
    "check_timeout": "2s",
    "max_checks": 1000,
    "redelivery_first": "100ms",
    "redelivery_cap": "1s",
}


class Survivors:
    """Everything of one engine that lives on."""

    def __init__(self, url: str, place: Place, crew: ForkServer, directory: Path, check_after: float) -> None:
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
        chosen = VARIANTS[variant]
        how = {"mode": chosen.mode, "prepare": chosen.prepare, "asynchronous": chosen.asynchronous}
        how["check_after"] = self._check_after
        how["refuse"], how["wait"], how["experienced"] = chosen.refused, chosen.wait, chosen.experienced
        if chosen.own_gid:
            how["gid"] = uuid.uuid4().hex
        where = {"url": self.url, "group": self.group, "topic": self.topic, "place": place or self.place}
        return self.crew.start("producer_main:main", id=name, at=at, **{**how, **where, **more})

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
            eventually_equal(lambda place=place: effects_of(place), once)
            eventually_equal(lambda by=by: self.view.unsettled(f"{self.topic}-{by}"), 0)
        eventually_equal(lambda: self.view.pending(self.group), [])
        for place in places or [self.place]:
            eventually_equal(lambda place=place: place.rows("select gid from tallystick_outbox"), [])
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

    def rest(self, quiet: float, seconds: float = PATIENCE) -> None:
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
        truth: dict[str, str] = {}
        for place in places or [self.place]:
            truth |= {
                gid: OUTCOMES[reason]
                for gid, reason in place.rows("select gid, reason from tallystick_barrier where op = 'msg'")
            }
        told = {one["gid"]: one["state"] for one in self.view.transactions()}
        assert {gid: told.get(gid) for gid in truth} == truth
        # A transaction that its producer rolled back, or that never came to the barrier, has no row.
        own = self.view.transactions(group=self.group)
        assert {one["state"] for one in own if one["gid"] not in truth} <= {"rolled_back"}
        return Counter((one["state"], one["resolved_by"]) for one in own)


def acquaint(member: tallystick.Client, place: Place, mode: Any = "check-back") -> None:
    """A member answers for a database under the name by which it has worked with it itself."""
    with contextlib.closing(place.connect()) as connection, member.transaction(connection, mode=mode) as tx:
        tx.send("acquaintance", "hello")


def outcomes_of(view: BrokerView, group: str, place: Place) -> dict[str, set[str]]:
    """Of each gid, what the broker says of it and what the barrier says."""
    found = {one["gid"]: {one["state"]} for one in view.transactions(group=group)}
    for gid, reason in place.rows("select gid, reason from tallystick_barrier where op = 'msg'"):
        found.setdefault(gid, set()).add(OUTCOMES[reason])
    return found


def effects_of(place: Place) -> Counter[str]:
    return Counter(row[0] for row in place.rows("select id from effect"))
