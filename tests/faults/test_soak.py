"""Producers, consumers and the broker killed at random under load; then every id is compared."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history import History, violations
from places import server_place
from seeds import chosen_seed
from survivors import BROKER, Survivors

import tallystick
from brokers import BrokerProcess, running_broker
from fork_server import Child, ForkServer
from servers import Server

pytestmark = [pytest.mark.fault, pytest.mark.postgresql]

QUIET_SECONDS = 2.0
PRODUCERS = 3
CONSUMERS = 2  # of each way
WAYS = ("inbox", "offset")
# How often each is struck.
WEIGHTS = {"producer": 5, "consumer": 4, "broker": 2}


class Scene:
    """Who is at work now, and the one who kills them."""

    def __init__(self, survivors: Survivors, broker: BrokerProcess, crew: ForkServer, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._ground, self._broker, self._crew = survivors, broker, crew
        self._random = random.Random(seed)
        self._all: list[Child] = []
        self._producers = [self._producer() for _ in range(PRODUCERS)]
        self._consumers = [(by, self._consumer(by)) for by in WAYS for _ in range(CONSUMERS)]

    def _producer(self) -> Child:
        where = {"url": self._broker.url, "group": self._ground.group, "topic": self._ground.topic}
        return self._start("producer_main:soak", place=self._ground.place, check_after=1.0, **where)

    def _consumer(self, by: str) -> Child:
        how = {"by": by, "at": 0, "invisible": 1.0, "concurrency": 4, "prefetch": 8, "name": by}
        where = {"url": self._broker.url, "topic": self._ground.topic, "group": f"{self._ground.topic}-{by}"}
        return self._start("consumer_main:main", place=self._ground.effects[by], **how, **where)

    def _start(self, work: str, **case: Any) -> Child:
        self._all.append(self._crew.start(work, **case))
        return self._all[-1]

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        first = list(WEIGHTS)  # each of them once, however short it is
        while first or time.monotonic() < end:
            time.sleep(self._random.uniform(0.1, 0.7))
            who = first.pop() if first else self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.kills[who] += 1
            getattr(self, f"_strike_{who}")()
        for child in self._producers:
            _die(child)

    def _strike_producer(self) -> None:
        seat = self._random.randrange(len(self._producers))
        _die(self._producers[seat])
        self._producers[seat] = self._producer()

    def _strike_consumer(self) -> None:
        seat = self._random.randrange(len(self._consumers))
        by, child = self._consumers[seat]
        _die(child)
        self._consumers[seat] = (by, self._consumer(by))

    def _strike_broker(self) -> None:
        self._broker.kill()
        time.sleep(self._random.uniform(0, 0.5))
        self._broker.start()

    def end(self) -> None:
        """A live member answers, the consumers that are left go on, and all comes to its end."""
        member = tallystick.Client(self._broker.url, group=self._ground.group, database=self._ground.place.connect)
        with member:
            self._ground.rest(QUIET_SECONDS)
        for _, child in self._consumers:
            _die(child)

    def history(self, by: str) -> History:
        # A process that died before it was told anything does not know.
        told = dict.fromkeys(self._reported("tried"), "unknown") | dict(self._reported("told"))
        sent, confirmed = set(self._reported("sending")), set(self._reported("confirmed"))
        return replace(self._ground.history(told, by), sent=sent, confirmed=confirmed)

    def _reported(self, kind: str) -> list[str]:
        return [one for child in self._all for one in child.reported(kind)]


def _die(child: Child) -> None:
    child.kill()
    assert child.wait() == -signal.SIGKILL, child.report


@pytest.mark.parametrize(
    "seconds", [pytest.param(6.0, id="short"), pytest.param(22.0, id="long", marks=pytest.mark.full)]
)
def test_nothing_is_lost_doubled_or_invented_while_everybody_is_killed(
    postgres: Server, crew: ForkServer, tmp_path: Path, seconds: float
) -> None:
    seed = chosen_seed()
    with running_broker(**BROKER) as broker:
        survivors = Survivors(broker.url, server_place(postgres), crew, tmp_path, 1.0)
        survivors.effects = {by: server_place(postgres) for by in WAYS}
        scene = Scene(survivors, broker, crew, seed)
        scene.run(seconds)
        scene.end()
        histories = {by: scene.history(by) for by in WAYS}
    one = histories["inbox"]
    unknown = len(one.tried - one.ok - one.failed)
    outcomes = f"ok {len(one.ok)}, failed {len(one.failed)}, unknown {unknown}"
    print(f"kills {dict(scene.kills)}, transactions {len(one.tried)} ({outcomes}), messages {len(one.sent)}")
    assert {by: violations(history) for by, history in histories.items()} == {by: [] for by in WAYS}
    assert set(scene.kills) == set(WEIGHTS)
    assert one.ok
