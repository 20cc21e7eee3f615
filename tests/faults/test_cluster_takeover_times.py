"""How long a cluster with default settings stands still when a broker goes: killed, 5 s at most; sent away, 1 s.

A busy machine decides nothing: beside each try a witness says how much slower than alone a little work goes, and the
try may take longer by that much of the part that is work and not waiting; and there is more than one try.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

import pytest
from cluster_load import Producer, check_what_is_there, goes_on, owned_by_others, post, stop

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from shared_stores import SHARED, new_place

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

STORES = 4
TRIES = 4
KILLED_SECONDS, SENT_AWAY_SECONDS = 5.0, 1.0
WORK_SECONDS = 1.0  # of each; the rest is a lease that runs out

# A process of its own: nothing of what the test does may look like the machine's load, and the reverse.
NAP, WORK = 0.05, 0.01
_WITNESS = f"""
import time
while True:
    began, worked = time.monotonic(), time.thread_time()
    time.sleep({NAP})
    while time.thread_time() - worked < {WORK}:
        pass
    print(began, time.monotonic(), flush=True)
"""


class Witness:
    """Sleeps and works by turns, as a broker does, and knows how long that should take."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._turns: list[tuple[float, float]] = []
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            began, ended = map(float, line.split())
            self._turns.append((began, ended))

    def slowdown(self, since: float, until: float) -> float:
        """How many times longer than alone its turns took then."""
        eventually(lambda: self._turns and self._turns[-1][1] >= until, "the witness has seen all of it")
        took = [ended - began for began, ended in list(self._turns) if ended >= since and began <= until]
        return sum(took) / len(took) / (NAP + WORK)

    def close(self) -> None:
        self._process.kill()
        self._reader.join(60)


@contextmanager
def watching() -> Iterator[Witness]:
    with subprocess.Popen([sys.executable, "-c", _WITNESS], stdout=subprocess.PIPE, text=True) as process:
        witness = Witness(process)
        try:
            yield witness
        finally:
            witness.close()


class Probe(threading.Thread):
    """Writes a little to one store, through each of some brokers by turns, and notes what was acknowledged when."""

    def __init__(self, store: str, through: list[BrokerProcess]) -> None:
        super().__init__(name=f"probe {store}", daemon=True)
        self._path = f"/stores/{store}/v1/messages"
        self._places = itertools.cycle([broker.url.removeprefix("http://") for broker in through])
        self.enough = threading.Event()
        self.writes: list[tuple[float, float]] = []  # began, acknowledged

    def run(self) -> None:
        while not self.enough.is_set():
            began = time.monotonic()
            if post(next(self._places), self._path, {"messages": [{"topic": "probe", "value": 1}]}) == 201:
                self.writes.append((began, time.monotonic()))
            time.sleep(0.01)

    def first_since(self, moment: float) -> float | None:
        """When the first write that began after it was acknowledged."""
        return next((done for began, done in list(self.writes) if began >= moment), None)

    def longest_silence(self, since: float, until: float) -> float:
        moments = [since, *(done for _, done in list(self.writes) if since <= done <= until)]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))


class Standstill(NamedTuple):
    back: float  # until every store has acknowledged something, none of them at the broker that goes
    silence: float  # the longest that a store acknowledged nothing
    slowdown: float


def standstill(cluster: BrokerCluster, gone: BrokerProcess, blow: Callable[[], object]) -> Standstill:
    staying = [broker for broker in cluster.brokers if broker is not gone]
    ids = [store["id"] for store in cluster.view(staying[0])["stores"]]
    probes = [Probe(store, staying) for store in ids]
    with watching() as witness:
        for probe in probes:
            probe.start()
        calm = time.monotonic()
        eventually(lambda: all(probe.first_since(calm) for probe in probes), "every store takes writes")
        struck = time.monotonic()
        blow()
        eventually(lambda: owned_by_others(cluster, gone, staying[0]), "a takeover", ignoring=(OSError,))
        moved = time.monotonic()
        eventually(lambda: all(probe.first_since(moved) for probe in probes), "every store takes writes again")
        back = max(probe.first_since(moved) or 0 for probe in probes)
        for probe in probes:
            probe.enough.set()
        silence = max(probe.longest_silence(struck, back) for probe in probes)
        for probe in probes:
            probe.join(60)
        return Standstill(back - struck, silence, witness.slowdown(struck, back))


@pytest.fixture(params=SHARED)
def cluster(request: pytest.FixtureRequest) -> Iterator[BrokerCluster]:
    with running_cluster(new_place(request.param, request), brokers=3, stores=STORES, check_after="1h") as made:
        yield made


def test_a_cluster_goes_on_within_seconds_when_a_broker_is_killed_or_sent_away_under_load(
    cluster: BrokerCluster,
) -> None:
    producers = [Producer(cluster, f"p{number}-{uuid4().hex[:6]}") for number in range(2)]
    for one in producers:
        one.start()
    goes_on(producers)
    within(SENT_AWAY_SECONDS, "sent away", cluster, BrokerProcess.terminate)
    within(KILLED_SECONDS, "killed", cluster, BrokerProcess.kill)
    stop(producers)
    check_what_is_there(cluster, producers)


def within(seconds: float, how: str, cluster: BrokerCluster, blow: Callable[[BrokerProcess], object]) -> None:
    """In one of some tries, each with another broker."""
    for number in range(TRIES):
        gone = cluster.brokers[number % len(cluster.brokers)]
        found = standstill(cluster, gone, lambda gone=gone: blow(gone))
        print(
            f"a broker was {how}: all stores go on after {found.back:.2f} s, none was silent for longer than "
            f"{found.silence:.2f} s (a machine {found.slowdown:.2f} times slower than alone)"
        )
        gone.wait()
        gone.start()
        cluster.wait_until_spread()
        if found.back <= seconds + WORK_SECONDS * (found.slowdown - 1):
            return
    raise AssertionError(f"not within {seconds:g} s in {TRIES} tries")
