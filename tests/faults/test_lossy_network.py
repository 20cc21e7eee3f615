"""Hundreds of transactions over a network that delays, cuts, loses, repeats and reorders, to broker and database."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from history import violations
from places import Place, server_place
from seeds import chosen_seed
from survivors import BROKER, Survivors, acquaint

import tallystick
from brokers import running_broker
from cutting_proxy import Cut, cutting_proxy
from fault_proxy import KINDS, Fault, FaultKind, fault_proxy
from fork_server import ForkServer
from servers import Server

pytestmark = [pytest.mark.fault, pytest.mark.postgresql]

CLIENTS = 4
THREADS = 3  # of each client
EACH = 40  # transactions of each thread
LATEST_SECONDS = 1.5  # after which no repeated request is on its way any more
WAYS = (("check-back", "late"), ("check-back", "early"), ("outbox", "late"))
# How often each fault meets a batch of operations; the rest passes.
WEIGHTS: dict[FaultKind, float] = {
    "delay": 0.08,
    "refuse": 0.05,
    "cut request": 0.06,
    "lose answer": 0.10,
    "cut answer": 0.06,
    "twice": 0.12,
    "late": 0.08,
}


class Refused(Exception):
    """The service changes its mind within the block."""


class Dice:
    """One seeded generator for all threads."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()

    def fault(self, request: str) -> Fault:
        with self._lock:
            draw, seconds, share = self._random.random(), self._random.uniform(0.01, 1.2), self._random.random()
        if not request.startswith("POST /v1/batch"):
            # Long polls and questions: a lost answer is a check-back that was asked for and never heard of.
            return Fault("lose answer" if draw < 0.1 else "refuse" if draw < 0.15 else "none")
        for kind, weight in WEIGHTS.items():
            if draw < weight:
                return Fault(kind, seconds, share)
            draw -= weight
        return Fault()

    def cut(self, request: bytes) -> Cut:
        """Around some commits of the database."""
        if b"COMMIT" not in request.upper():
            return "no"
        draw = self.draw()
        return "before" if draw < 0.06 else "after" if draw < 0.14 else "no"

    def draw(self) -> float:
        with self._lock:
            return self._random.random()


class Service:
    """One thread of a service: its transactions, and what it was told of each."""

    def __init__(self, client: tallystick.Client, place: Place, topic: str, name: str, dice: Dice) -> None:
        self._client, self._place, self._topic, self._name, self._dice = client, place, topic, name, dice
        self.told: dict[str, str] = {}

    def work(self) -> None:
        connection = self._place.connect()
        for number in range(EACH):
            mode, prepare = WAYS[number % len(WAYS)]
            name = f"{self._name}-{number}"
            self.told[name] = self._try(connection, name, mode, prepare)
            if connection.closed:
                connection = self._place.connect()
        connection.close()

    def _try(self, connection: Any, name: str, mode: Any, prepare: Any) -> str:
        try:
            with self._client.transaction(connection, mode=mode, prepare=prepare) as tx:
                tx.send(self._topic, name, key=name)
                if prepare == "early":
                    tx.prepare()
                self._place.run(connection, "insert into business values (%s, %s)", name, "")
                if self._dice.draw() < 0.1:
                    raise Refused
        except tallystick.OutcomeUnknown:
            return "unknown"
        except (tallystick.TallystickError, psycopg.Error, Refused):
            return "failed"
        return "ok"


@pytest.mark.full
def test_every_outcome_is_honoured_over_a_network_that_loses_and_repeats(
    postgres: Server, crew: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = Dice(chosen_seed())
    place = server_place(postgres)
    with (
        running_broker(**BROKER) as broker,
        fault_proxy(broker.port, dice.fault) as network,
        cutting_proxy(postgres.port, dice.cut) as cutter,
    ):
        survivors = Survivors(broker.url, place, crew, tmp_path_factory.mktemp("survivors"), 0.5)
        around = Place(place.engine, {**place.parameters, "port": cutter.port})
        with survivors.living(consume_from=network.url) as member:
            told = run_services(network.url, around, survivors, dice)
            network.calm()
            cutter.calm()
            acquaint(member, around)
            survivors.rest(LATEST_SECONDS)
        for by in survivors.effects:
            assert violations(survivors.history(told, by)) == []
        survivors.outcomes_agree()
        print(dict(network.met), "cuts", cutter.cut, Counter(told.values()))
        assert set(network.met) == set(KINDS)
        assert set(told.values()) == {"ok", "failed", "unknown"}
        assert len(told) == CLIENTS * THREADS * EACH


def run_services(url: str, place: Place, survivors: Survivors, dice: Dice) -> dict[str, str]:
    with contextlib.ExitStack() as open_clients, ThreadPoolExecutor(CLIENTS * THREADS) as pool:
        services = []
        for number in range(CLIENTS):
            client = tallystick.Client(url, group=survivors.group, timeout=3.0, commit_wait=0.3, check_after=0.5)
            open_clients.enter_context(client)
            services += [
                Service(client, place, survivors.topic, f"{number}-{thread}", dice) for thread in range(THREADS)
            ]
        list(pool.map(Service.work, services))
    return {name: outcome for service in services for name, outcome in service.told.items()}
