"""Senders at work on one broker through both doors, a service that answers badly, and a watcher of what is done."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Literal

from broker_script import Broken
from call_doors import Door, DtmDoor, NativeDoor, calls_state, calls_view
from call_history import CallHistory, Told
from call_service import Arrival, Service, always

from brokers import BrokerProcess
from eventually import SECONDS as PATIENCE
from raw_client import Gone, RawClient

Outcome = Literal["committed", "rolled_back"]
BRANCHES = ["01", "02", "03"]


class CallLoad:
    """`count` transactions by each of four workers, or as many as they can until it settles. What its own database
    would say of a gid is decided once, by the sender or by the check-back, whichever comes first: as a barrier does."""

    def __init__(
        self, broker: BrokerProcess, service: Service, seed: int, count: int | None = None, url: str = ""
    ) -> None:
        """`url` is the way that the senders take to the broker."""
        self.broker, self.service, self.count, self.url = broker, service, count, url or broker.url
        self.history, self.truth = CallHistory(), dict[str, Outcome]()
        self.states: dict[str, str | None] = {}
        self.unknown = 0
        self._lock, self._ended, self._enough = threading.Lock(), threading.Event(), threading.Event()
        self._rng = random.Random(seed)
        service.answer, service.truth = self.badly, self._check
        self._senders = [threading.Thread(target=self._send, args=(n, f"{seed}-{n}")) for n in range(4)]
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> CallLoad:
        for thread in (*self._senders, self._watcher):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._enough.set()
        for thread in (*self._senders, self._watcher):
            thread.join(60)

    def settle(self, seconds: float = PATIENCE) -> None:
        """No more bad answers; wait until nothing is left to do, and keep what the broker says of each gid."""
        if self.count is None:
            self._enough.set()
        for thread in self._senders:
            thread.join(60)
        self.service.answer = always(200)
        deadline = time.monotonic() + seconds
        with RawClient(self.broker.url) as client:
            while True:
                self.states = {gid: calls_state(client, gid) for gid in self.history.branches}
                if set(self.states.values()) <= {"done", "dropped", None} or time.monotonic() > deadline:
                    return
                time.sleep(0.2)

    # --- the service ---------------------------------------------------------------------------------------------

    def badly(self, _: Arrival) -> int:
        """One answer in four is not the one that was hoped for."""
        draw = self._rng.random()
        if draw < 0.05:
            time.sleep(0.1)
        return 200 if draw < 0.75 else self._rng.choice([409, 425, 500, 503])

    def _check(self, gid: str) -> int:
        return 200 if self._decide(gid, "rolled_back") == "committed" else 409

    def _decide(self, gid: str, outcome: Outcome) -> Outcome:
        with self._lock:
            return self.truth.setdefault(gid, outcome)

    # --- the senders ---------------------------------------------------------------------------------------------

    def _send(self, worker: int, seed: str) -> None:
        rng = random.Random(seed)
        with RawClient(self.url, timeout=5) as client:
            door: Door = DtmDoor(client, self.service) if worker % 2 else NativeDoor(client, self.service)
            for number in itertools.count() if self.count is None else range(self.count):
                if self._enough.wait(rng.uniform(0, 0.06) if self.count is None else 0):
                    return
                try:
                    self._transaction(door, rng, f"w{worker}-{number}")
                except Exception as error:
                    self.history.problems.append(f"w{worker}-{number}: {type(error).__name__}: {error}")

    def _transaction(self, door: Door, rng: random.Random, gid: str) -> None:
        branches, concurrent = BRANCHES[: rng.randint(1, 3)], rng.random() < 0.3
        self.history.branches[gid] = branches
        if concurrent:
            self.history.concurrent.add(gid)
        give_up = rng.random() < 0.3
        if self._until_certain(lambda: door.prepare(gid, branches, concurrent), give_up) == "unknown":
            if self._decide(gid, "rolled_back") == "rolled_back":
                self.history.told[gid] = "failed"  # the local transaction was never begun
            return
        wanted: Outcome = "committed" if rng.random() < 0.75 else "rolled_back"
        if rng.random() < 0.05:
            return  # the sender dies here; the check-back decides
        outcome = self._decide(gid, wanted)
        end = door.submit if outcome == "committed" else door.abort
        told = self._until_certain(lambda: end(gid), rng.random() < 0.3) if rng.random() < 0.95 else "unknown"
        if told != "unknown":
            self.history.told[gid] = told
        if told not in ("unknown", "ok" if outcome == "committed" else "failed"):
            self.history.problems.append(f"{gid} is {outcome} in its database, and {told} here")

    def _until_certain(self, what: Callable[[], Told | None], give_up: bool) -> Told:
        while True:
            try:
                return what() or "ok"
            except Broken:
                self.unknown += 1
                if give_up or self._ended.is_set():
                    return "unknown"
                time.sleep(0.02)

    # --- the watcher ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        rng = random.Random(0)
        with RawClient(self.broker.url, timeout=5) as client:
            while not self._ended.is_set():
                gids = list(self.history.branches)
                try:
                    self._look(client, rng.choice(gids)) if gids else time.sleep(0.05)
                except (*Gone, AssertionError):
                    time.sleep(0.02)

    def _look(self, client: RawClient, gid: str) -> None:
        view = calls_view(client, gid)
        if view is None:
            return
        number = self.service.next_number()
        for call in view["calls"]:
            if call["state"] == "done":
                self.history.saw_done(gid, call["branch"], number)


def expected_told(load: CallLoad) -> dict[str, Told]:
    """What each transaction's own database says, where its sender was told nothing."""
    words: dict[Outcome, Told] = {"committed": "ok", "rolled_back": "failed"}
    return {gid: words[outcome] for gid, outcome in load.truth.items()}
