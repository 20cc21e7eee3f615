"""Producers, consumers and the broker killed at random under load; then every id is compared."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from ground import BROKER, effects_of, outcomes_of
from history import History, violations
from looking import BrokerView
from nursery import Child, Nursery
from places import server_place
from seeds import chosen_seed

import tallystick
from brokers import BrokerProcess, running_broker
from servers import Server

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.postgresql]

SECONDS = 22.0
REST_SECONDS = 60.0
QUIET_SECONDS = 2.0
PRODUCERS = 3
CONSUMERS = 2  # of each way
GROUP, TOPIC = "producers", "soak"
WAYS = ("inbox", "offset")


class Scene:
    """The broker, the databases, and who works on them now."""

    def __init__(self, broker: BrokerProcess, postgres: Server, crew: Nursery, seed: int) -> None:
        self.broker, self.crew = broker, crew
        self.view = BrokerView(broker.url)
        self.place = server_place(postgres)
        self.effects = {by: server_place(postgres) for by in WAYS}
        self.kills: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._producers: list[Child] = [self._producer() for _ in range(PRODUCERS)]
        self._consumers = [(by, self._consumer(by)) for by in WAYS for _ in range(CONSUMERS)]

    def _producer(self) -> Child:
        return self.crew.start("soak", url=self.broker.url, group=GROUP, topic=TOPIC, place=self.place, check_after=1.0)

    def _consumer(self, by: str) -> Child:
        how = {"by": by, "at": 0, "invisible": 1.0, "concurrency": 4, "prefetch": 8, "name": by}
        where = {"url": self.broker.url, "topic": TOPIC, "group": f"{TOPIC}-{by}", "place": self.effects[by]}
        return self.crew.start("consume", **how, **where)

    def strike(self) -> None:
        """Kill somebody, and put another in their place."""
        who = self._random.choices(("producer", "consumer", "broker"), (5, 4, 2))[0]
        self.kills[who] += 1
        if who == "broker":
            self.broker.kill9()
            time.sleep(self._random.uniform(0, 0.5))
            self.broker.start()
        elif who == "producer":
            place = self._random.randrange(len(self._producers))
            _die(self._producers[place])
            self._producers[place] = self._producer()
        else:
            place = self._random.randrange(len(self._consumers))
            by, child = self._consumers[place]
            _die(child)
            self._consumers[place] = (by, self._consumer(by))

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._random.uniform(0.1, 0.7))
            self.strike()
        for child in self._producers:
            _die(child)

    def rest(self) -> None:
        """With a live member and the consumers that are left, everything comes to its end."""
        with tallystick.Client(self.broker.url, group=GROUP, database=self.place.connect):
            deadline = time.monotonic() + REST_SECONDS
            since = time.monotonic()
            while time.monotonic() < deadline and time.monotonic() - since < QUIET_SECONDS:
                if self.pending() or self.late():
                    since = time.monotonic()
                time.sleep(0.2)
        for _, child in self._consumers:
            _die(child)

    def pending(self) -> set[str]:
        left = {one["gid"] for one in self.view.pending(GROUP)}
        left |= {row[0] for row in self.place.rows("select gid from tallystick_outbox")}
        # By offset, the consumer's own database knows what is settled; the broker is only shown it now and then.
        if self.view.unsettled(f"{TOPIC}-inbox"):
            left.add("inbox")
        return left

    def late(self) -> set[str]:
        """What is committed and has no effect yet, by either way."""
        rows = {row[0] for row in self.place.rows("select id from business")}
        return {name for place in self.effects.values() for name in rows - set(effects_of(place))}

    def history(self, by: str) -> History:
        told = dict(_reported(self.crew, "told"))
        return History(
            tried=set(_reported(self.crew, "tried")),
            ok={name for name, outcome in told.items() if outcome == "ok"},
            failed={name for name, outcome in told.items() if outcome == "failed"},
            rows=Counter(row[0] for row in self.place.rows("select id from business")),
            effects=effects_of(self.effects[by]),
            sent=set(_reported(self.crew, "sending")),
            confirmed=set(_reported(self.crew, "confirmed")),
            outcomes=outcomes_of(self.view, GROUP, self.place),
            pending=self.pending(),
        )


def _die(child: Child) -> None:
    child.kill()
    assert child.wait() == -9, child.report


def _reported(crew: Nursery, kind: str) -> list[str]:
    return [one for child in crew.children for one in child.reported(kind)]


def test_nothing_is_lost_doubled_or_invented_while_everybody_is_killed(postgres: Server, crew: Nursery) -> None:
    seed = chosen_seed()
    with running_broker(**BROKER) as broker:
        scene = Scene(broker, postgres, crew, seed)
        scene.run(SECONDS)
        scene.rest()
        histories = {by: scene.history(by) for by in WAYS}
    one = histories["inbox"]
    unknown = len(one.tried - one.ok - one.failed)
    outcomes = f"ok {len(one.ok)}, failed {len(one.failed)}, unknown {unknown}"
    print(f"kills {dict(scene.kills)}, transactions {len(one.tried)} ({outcomes}), messages {len(one.sent)}")
    assert {by: violations(history) for by, history in histories.items()} == {by: [] for by in WAYS}
    assert set(scene.kills) == {"producer", "consumer", "broker"}
    assert len(one.ok) > 100
