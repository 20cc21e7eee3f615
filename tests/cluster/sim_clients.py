"""Producers and consumers of the simulation, and what they are told: the history that is held to the promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from sim_nodes import SimNode
from sim_world import TIMED_OUT, Process, World

from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Commit, Nack, OpResult, Prepare, Rollback, Send
from tallystick.core.wire import Delivery
from tallystick.store.protocol import Receive, Received, StoreOp

TOPIC, GROUP = "orders", "readers"
INVISIBLE_MS = 5_000
# How far two owners' reckonings of the engine's clock may lie apart: a look may take that long, and be the only one.
CLOCKS_APART_MS = 1_500
NOT_CARRIED_OUT = {"moved", "storage_failed"}  # nor is it known not to be

Place = tuple[str, int, int]  # store, queue, offset


class Broken(AssertionError):
    """A promise was not kept."""


class Lending(Struct):
    at: float  # when the broker read its clock for it
    receipt: str
    given_back: bool = False


class History:
    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}  # number and queue of the last message that was read, by key
        self.outcomes: dict[str, str] = {}  # acknowledged, by gid
        self.places: dict[Place, str] = {}  # whose message somebody has seen there
        self.lendings: defaultdict[Place, list[Lending]] = defaultdict(list)
        self.settled: dict[Place, str] = {}  # by which receipt, acknowledged
        self.refused: set[str] = set()  # receipts

    def lent(self, store: str, result: Any, at: float) -> None:
        """A broker lends messages, and has them durably lent, whether or not anybody hears of it."""
        for delivery in result.deliveries if isinstance(result, Received) else ():
            place = _place(store, delivery)
            self.saw(place, delivery.message.gid)
            self.lendings[place].append(Lending(at, delivery.receipt))

    def saw(self, place: Place, gid: str) -> None:
        if self.places.setdefault(place, gid) != gid:
            raise Broken(f"{place} held a message of {self.places[place]}, and then one of {gid}")

    def gives_back(self, store: str, delivery: Delivery) -> None:
        """From here on it may be lent to others."""
        for lending in self.lendings[_place(store, delivery)]:
            lending.given_back |= lending.receipt == delivery.receipt

    def acked(self, store: str, delivery: Delivery, honoured: bool) -> None:
        place = _place(store, delivery)
        if not honoured:
            self.refused.add(delivery.receipt)
        elif delivery.receipt in self.refused:
            raise Broken(f"the lease {delivery.receipt} was refused, and then honoured")
        elif self.settled.setdefault(place, delivery.receipt) != delivery.receipt:
            raise Broken(f"two leases of {place} were honoured: {self.settled[place]} and {delivery.receipt}")

    def read(self, key: str | None, gid: str, queue: int) -> None:
        """Messages of a key lie in one queue, in the order in which they were sent."""
        if key is None:
            return
        number = int(gid.rpartition("-")[2])
        before, at = self.last.get(key, (-1, queue))
        if number <= before or queue != at:
            raise Broken(f"{gid} lies in queue {queue}, behind number {before} of the same key in queue {at}")
        self.last[key] = number, queue

    def check_lendings(self) -> None:
        """One at a time, each for its whole time unless it was given back; nothing after the one that was honoured."""
        for place, lendings in self.lendings.items():
            lendings.sort(key=lambda lending: lending.at)
            for before, after in pairwise(lendings):
                if not before.given_back and after.at < before.at + INVISIBLE_MS - CLOCKS_APART_MS:
                    raise Broken(
                        f"{place} was lent for {INVISIBLE_MS} ms, and again {after.at - before.at:.0f} ms later"
                    )
            if self.settled.get(place, lendings[-1].receipt) != lendings[-1].receipt:
                raise Broken(f"{place} was lent again although the lease {self.settled[place]} was honoured")


def _place(store: str, delivery: Delivery) -> Place:
    return store, delivery.message.queue, delivery.message.offset


class SimClient:
    """Asks until it is told something, of whichever node answers."""

    def __init__(self, world: World, name: str, nodes: list[SimNode], stores: list[str], history: History) -> None:
        self.world, self.nodes, self.stores, self.history = world, nodes, stores, history
        self.random = world.random
        self.process = Process(world, name)
        self.finished = False
        self._guess: dict[str, int] = {}
        world.start(self.process, self._run)

    def _run(self) -> None:
        self.run()
        self.finished = True
        self.world.finished += 1

    def run(self) -> None:
        raise NotImplementedError

    def dawdle(self, most_ms: float) -> None:
        """Only while there is something to be caught by: what is left to do in the calm is done without delay."""
        self.world.sleep(self.process, self.random.uniform(0, min(most_ms, 50) if self.world.calm else most_ms))

    def try_once(self, store: str, op: StoreOp) -> Any:
        """What a node has told, or None if nobody knows whether it was carried out."""
        node = self.nodes[self._guess.setdefault(store, self.random.randrange(len(self.nodes)))]
        told = self.world.ask(
            self.process, node.process, lambda answer: node.request(store, op, lambda it: answer([it])), 1_500
        )
        if told is TIMED_OUT or (isinstance(told[0], OpResult) and told[0].error in NOT_CARRIED_OUT):
            self._guess[store] = (self._guess[store] + 1) % len(self.nodes)
            self.dawdle(200)
            return None
        return told

    def until_told(self, store: str, op: StoreOp) -> str | None:
        """The word with which it was refused in the end; None if it was carried out."""
        while (told := self.try_once(store, op)) is None:
            pass
        return told[0].error if isinstance(told[0], OpResult) else None


class SimProducer(SimClient):
    count = 8

    def run(self) -> None:
        for number in range(self.count):
            self.dawdle(2_000)
            store = self.random.choice(self.stores)
            gid = f"{self.process.name}-{number}"
            way = self.random.random()
            if way < 0.3:
                self._end(store, Send([self._message(gid)], gid), gid, "committed")
                continue
            prepare = Prepare(gid, "shop", [self._message(gid)])
            refused = self.until_told(store, prepare)
            if refused:
                raise Broken(f"{gid} could not be prepared: {refused}")
            self.dawdle(500)
            if way < 0.8:
                self._end(store, Commit(gid), gid, "committed")
            else:
                self._end(store, Rollback(gid), gid, "rolled_back")

    def _message(self, gid: str) -> OutgoingMessage:
        return OutgoingMessage(TOPIC, gid.encode())

    def _end(self, store: str, op: StoreOp, gid: str, outcome: str) -> None:
        refused = self.until_told(store, op)
        if refused:
            raise Broken(f"{gid} could not be {outcome}: {refused}")
        self.history.outcomes[gid] = outcome


class SimKeyedProducer(SimClient):
    """Sends messages of one key. It sends the next one once the one before was acknowledged: an attempt without an
    answer is repeated under the same gid. An impatient one gives such an attempt up, and goes on."""

    count = 5
    impatient = False

    def run(self) -> None:
        key, store = self.process.name, self.random.choice(self.stores)
        for number in range(self.count):
            self.dawdle(1_500)
            gid = f"{key}-{number}"
            op = Send([OutgoingMessage(TOPIC, gid.encode(), key=key)], gid)
            if self.impatient:
                if self.try_once(store, op) is None:
                    continue
            elif refused := self.until_told(store, op):
                raise Broken(f"{gid} could not be sent: {refused}")
            self.history.outcomes[gid] = "committed"


class SimConsumer(SimClient):
    """Goes on until everything was sent and every store says that it has nothing more to lend just now."""

    producers: Sequence[SimClient]

    def run(self) -> None:
        all_sent = some_came = False
        while some_came or not all_sent:
            all_sent = all(producer.finished for producer in self.producers)
            came = [self._consume(store) for store in self.stores]
            some_came = any(came)
            self.world.sleep(self.process, self.random.uniform(0, 1_000))

    def _consume(self, store: str) -> bool:
        told = self.try_once(store, Receive(GROUP, TOPIC, 3, INVISIBLE_MS))
        if told is None:
            return True  # who knows
        deliveries = told[0].deliveries if isinstance(told[0], Received) else []
        for delivery in deliveries:
            self.dawdle(100 if self.random.random() < 0.8 else 9_000)
            if self.random.random() < 0.15:
                self.history.gives_back(store, delivery)
                self.until_told(store, Nack(GROUP, [delivery.receipt], delay_ms=200))
            else:
                self._ack(store, delivery)
        return bool(deliveries)

    def _ack(self, store: str, delivery: Delivery) -> None:
        """A refusal after an attempt without an answer says nothing: that one may have been honoured."""
        op = Ack(GROUP, [delivery.receipt])
        tries = 1
        while (told := self.try_once(store, op)) is None:
            tries += 1
        refused = isinstance(told[0], OpResult) and bool(told[0].error)
        if not refused or tries == 1:
            self.history.acked(store, delivery, not refused)
