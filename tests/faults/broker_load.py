"""Producers, a reader, a consumer and an answerer at work on one broker, and the checker of their history.

Every operation ends in one of three ways: ok, refused, or unknown. What a producer's own database would hold (the truth
of a gid) is decided before the broker hears of it, as a local commit is. At the end, the truth and what the broker
shows are compared as sets.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from brokers import BrokerProcess
from eventually import SECONDS as PATIENCE
from raw_client import Gone, RawClient
from tallystick.core.errors import TallystickError
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import Ack, AnswerChecks, Check, ClientOp, Commit, Prepare, Rollback

TOPIC = "orders"
Outcome = Literal["committed", "rolled_back"]
Identity = tuple[str, int]


def identity(message: StoredMessage) -> Identity:
    return message.gid, message.sequence


@dataclass
class History:
    """What the clients know. `problems` are contradictions that they noticed themselves."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    truth: dict[str, Outcome] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    prepared: set[str] = field(default_factory=set)  # confirmed
    confirmed: dict[str, Outcome] = field(default_factory=dict)
    in_turn: dict[str, list[str]] = field(default_factory=dict)  # per worker, commits confirmed one after the other
    seen: dict[tuple[int, int], Identity] = field(default_factory=dict)
    acknowledged: set[Identity] = field(default_factory=set)
    unknown: int = 0
    problems: list[str] = field(default_factory=list)

    def decide(self, gid: str, outcome: Outcome) -> Outcome:
        """Write the truth, unless the answerer was faster; as the barrier's unique key does."""
        with self.lock:
            return self.truth.setdefault(gid, outcome)

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)


class Load:
    def __init__(self, broker: BrokerProcess, workers: int = 4) -> None:
        self.broker, self.history = broker, History()
        self._producing, self._watching = threading.Event(), threading.Event()
        self._producers = [threading.Thread(target=self._produce, args=(f"w{n}",)) for n in range(workers)]
        self._others = [
            threading.Thread(target=self._repeat, args=(one,)) for one in (self._ask, self._read, self._take)
        ]

    def __enter__(self) -> Load:
        for thread in self._producers + self._others:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producing.set()
        self._watching.set()
        for thread in self._producers + self._others:
            thread.join(30)

    def settle(self, seconds: float = PATIENCE) -> None:
        """No more new transactions; wait until none is in doubt."""
        self._producing.set()
        for thread in self._producers:
            thread.join(30)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with RawClient(self.broker.url) as client:
                    pages = [
                        client.json("GET", f"/v1/transactions?state={one}").json() for one in ("prepared", "parked")
                    ]
            except Gone:
                time.sleep(0.05)
                continue
            if not any(page["transactions"] for page in pages):
                return
            time.sleep(0.1)
        self.history.problem(f"still in doubt: {[one['gid'] for page in pages for one in page['transactions']][:5]}")

    # --- producers -----------------------------------------------------------------------------------------------

    def _produce(self, name: str) -> None:
        rng, number = random.Random(name), 0
        with RawClient(self.broker.url, timeout=5) as client:
            while not self._producing.is_set():
                number += 1
                self._transaction(client, rng, name, f"{name}-{number}")

    def _transaction(self, client: RawClient, rng: random.Random, worker: str, gid: str) -> None:
        history, size = self.history, rng.randint(1, 3)
        messages = [OutgoingMessage(TOPIC, gid.encode(), key=worker) for _ in range(size)]
        history.sizes[gid] = size
        prepare = Prepare(gid, "shop", messages, Check(after_ms=rng.choice([100, 1_000])))
        if not self._until_certain(client, prepare, give_up=rng.random() < 0.3):
            history.decide(gid, "rolled_back")  # the local transaction was never committed
            return
        history.prepared.add(gid)
        wanted: Outcome = "committed" if rng.random() < 0.8 else "rolled_back"
        if rng.random() < 0.05:
            return  # the producer dies here; the answerer decides
        outcome = history.decide(gid, wanted)
        end: ClientOp = Commit(gid) if outcome == "committed" else Rollback(gid)
        if rng.random() < 0.95 and self._until_certain(client, end, give_up=rng.random() < 0.3):
            history.confirmed[gid] = outcome
            if outcome == "committed":
                history.in_turn.setdefault(worker, []).append(gid)

    def _until_certain(self, client: RawClient, op: ClientOp, give_up: bool) -> bool:
        """Repeat until the broker confirms. False if we gave up not knowing."""
        while True:
            try:
                client.do(op)
                return True
            except Gone:
                self.history.unknown += 1
                if give_up or self._watching.is_set():
                    return False
                time.sleep(0.02)
            except TallystickError as error:
                if error.code == "already_resolved":
                    return True  # the answerer was faster than the repetition of the prepare
                self.history.problem(f"{type(op).__name__} of {getattr(op, 'gid', '')} was refused: {error}")
                return False

    # --- the others ------------------------------------------------------------------------------------------------

    def _repeat(self, what: Callable[[RawClient], None]) -> None:
        with RawClient(self.broker.url, timeout=5) as client:
            while not self._watching.is_set():
                try:
                    what(client)
                except Gone:
                    time.sleep(0.02)
                except TallystickError as error:
                    self.history.problem(f"{what.__name__}: {error}")

    def _ask(self, client: RawClient) -> None:
        """Answer check-backs from the truth; what is not decided yet becomes rolled back, as in the barrier."""
        gids = [one.gid for one in client.poll_checks("shop", wait_ms=300)]
        if gids:
            client.do(AnswerChecks({gid: self.history.decide(gid, "rolled_back") for gid in gids}))

    def _read(self, client: RawClient) -> None:
        for message in client.messages(TOPIC):
            place = (message.queue, message.offset)
            before = self.history.seen.setdefault(place, identity(message))
            if before != identity(message):
                self.history.problem(f"{place} held {before} and now holds {identity(message)}")
        time.sleep(0.05)

    def _take(self, client: RawClient) -> None:
        for delivery in client.receive("g", TOPIC, max=20, wait_ms=200, invisible_ms=1_000):
            what = identity(delivery.message)
            if what in self.history.acknowledged:
                self.history.problem(f"{what} came again after its acknowledgement was confirmed")
            (result,) = client.batch(Ack("g", [delivery.receipt]))
            if result is None:
                self.history.acknowledged.add(what)


def check(history: History, found: list[StoredMessage], states: dict[str, str | None]) -> list[str]:
    """Everything that contradicts the promises; an empty list if nothing does."""
    problems = list(history.problems)
    counts = Counter(map(identity, found))
    wanted = {
        (gid, number)
        for gid, outcome in history.truth.items()
        if outcome == "committed"
        for number in range(history.sizes[gid])
    }
    problems += [f"lost: {what}" for what in sorted(wanted - counts.keys())]
    problems += [f"ghost: {what}" for what in sorted(counts.keys() - wanted)]
    problems += [f"{count} times: {what}" for what, count in counts.items() if count > 1]
    places = {(one.queue, one.offset): identity(one) for one in found}
    problems += [f"taken back: {what}" for place, what in history.seen.items() if places.get(place) != what]
    for gid, outcome in history.truth.items():
        if states.get(gid) != outcome and (gid in history.prepared or states.get(gid) is not None):
            problems.append(f"{gid} is {outcome} in its database and {states.get(gid)} here")
    problems += [f"forgot {gid}" for gid in history.prepared if states.get(gid) is None]
    order = {identity(one)[0]: one.offset for one in found}
    for worker, gids in history.in_turn.items():
        offsets = [order[gid] for gid in gids if gid in order]
        if offsets != sorted(offsets):
            problems.append(f"out of order: {worker}")
    return problems
