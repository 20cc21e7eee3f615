"""The nodes of the simulation: membership, SharedEngine and KvStore as they are, over an engine that is far away.

What `Node`, `Tenure` and `Writer` do with threads and an event loop is done here by turns; the rules are theirs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sim_world import TIMED_OUT, Process, World

from tallystick.broker.cluster.clock import EngineClock
from tallystick.broker.cluster.membership import TICK_MS, Membership, Todo
from tallystick.core.clock import Clock
from tallystick.core.errors import Moved, StorageFailed
from tallystick.core.ops import OpResult
from tallystick.store.kv.engine import Changes, EngineFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import Result, StoreOp, StoreSettings
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.memory import MemoryCluster
from tallystick.store.shared.registry import Holding, Member, Seen
from tallystick.store.shared.server import ServerAway, SharedServer

PATIENCE_MS = 500
SETTINGS = StoreSettings(default_queues=2)


class Far:
    """Something on the engine's machine, asked from a process: each call is a question, and may stay unanswered."""

    def __init__(self, process: Process, engine: Process, real: Any) -> None:
        self._process, self._engine, self._real = process, engine, real

    def _ask(self, question: Callable[[], Any]) -> Any:
        return self._told(lambda answer: answer(question()))

    def _change(self, do: Callable[[], Any]) -> Any:
        """What is to be written may have to wait on the engine's machine, and is written whoever still wants it."""

        def change(answer: Callable[[Any], None]) -> None:
            world = self._process.world
            wait = max(0.0, self._engine.writes_wait_until - world.now) * world.random.random()
            world.later(wait, lambda: answer(do()), self._engine)

        return self._told(change)

    def _told(self, do: Callable[[Callable[[Any], None]], None]) -> Any:
        found = self._process.world.ask(self._process, self._engine, do, PATIENCE_MS)
        if found is TIMED_OUT:
            raise ServerAway("no answer in time")
        return found

    def cut(self) -> None:
        """What is on its way stays on its way."""

    def close(self) -> None:
        """There is nothing to close."""


class FarServer(Far):
    trips = 0

    def fence(self) -> Any:
        return self._ask(self._real.fence)

    def look_up(self, wanted: Any) -> Any:
        return self._ask(lambda: self._real.look_up(wanted))

    def page(self, *which: Any) -> Any:
        return self._ask(lambda: self._real.page(*which))

    def apply(self, epoch: int, unit: int, changes: Changes) -> Any:
        return self._change(lambda: self._real.apply(epoch, unit, changes))


class FarRegistry(Far):
    def look(self, me: Member) -> Seen:
        found: Seen = self._ask(lambda: self._real.look(me))
        return found

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        found: int | None = self._change(lambda: self._real.claim(number, expected_epoch, owner))
        return found

    def release(self, number: int, epoch: int) -> None:
        self._change(lambda: self._real.release(number, epoch))

    def forget(self, member_id: str) -> None:
        self._ask(lambda: self._real.forget(member_id))


class Build:
    """How a node is built. The seeded bugs build it differently."""

    impatient_sender = False  # one that goes on while a message of the same key is in doubt

    def server(self, cluster: MemoryCluster, number: int) -> Any:
        """What stands on the engine's machine."""
        return cluster.server(number)

    def engine(self, server: SharedServer, epoch: int) -> SharedEngine:
        return SharedEngine(server, epoch)

    def clock(self, process: Process, learnt: EngineClock) -> Clock:
        return learnt

    def opened(self, store: KvStore, now: int) -> None:
        """A store was taken over."""


Told = Callable[[Result], None]
Lent = Callable[[str, Result, float], None]  # the store, what was received, and when it was lent in truth


class SimTenure:
    def __init__(self, node: SimNode, holding: Holding, epoch: int) -> None:
        self.node, self.holding, self.epoch = node, holding, epoch
        self.process = node.process
        self.store: KvStore | None = None
        self.ending = self.ended = False
        self._waiting: list[tuple[StoreOp, Told]] = []
        self._wake: Callable[[Any], None] = lambda _: None
        node.world.start(self.process, self._live)

    def end(self) -> None:
        self.ending = True
        self._wake(None)

    def put(self, op: StoreOp, tell: Told) -> None:
        self._waiting.append((op, tell))
        self._wake(None)

    def _live(self) -> None:
        self._open()
        while not (self.ending and not self._waiting):
            if self._waiting:
                works, self._waiting = self._waiting, []
                self._commit(works)
            else:
                self.node.world.wait(self.process, self._listen, 1_000)
        self.ended = True

    def _listen(self, tell: Callable[[Any], None]) -> None:
        self._wake = tell

    def _open(self) -> None:
        build, engine = self.node.build, self.node.engine
        server = FarServer(self.process, engine, build.server(self.node.cluster, self.holding.number))
        while self.store is None and not self.ending:
            try:
                store = KvStore(self.holding.id, lambda: build.engine(server, self.epoch), SETTINGS)  # type: ignore[arg-type]
                build.opened(store, self.node.clock.now_ms())
                self.store = store
            except (EngineFailed, StorageFailed):
                self.node.world.sleep(self.process, TICK_MS)

    def _commit(self, works: list[tuple[StoreOp, Told]]) -> None:
        assert self.store is not None
        if self.store.failure() is not None and self.store.recover() is None:
            self.node.world.sleep(self.process, 100)
        lent_at = self.node.world.now
        try:
            results = self.store.write([op for op, _ in works], self.node.clock.now_ms()).results
        except StorageFailed as error:
            results = [OpResult(error=error.code) for _ in works]
        for (_, tell), result in zip(works, results, strict=True):
            self.node.lent(self.holding.id, result, lent_at)
            tell(result)


class SimNode:
    """One after the other lives of a broker process, each with an id of its own."""

    def __init__(
        self, world: World, name: str, cluster: MemoryCluster, engine: Process, build: Build, lent: Lent
    ) -> None:
        self.world, self.name, self.cluster, self.engine = world, name, cluster, engine
        self.build, self.lent = build, lent
        self.lives = 0
        self.others: dict[str, SimNode] = {}  # by their names
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.process = Process(self.world, self.name)
        self.membership = Membership(Member(f"{self.name}.{self.lives}", self.name, f"http://{self.name}"))
        self.tenures: dict[int, SimTenure] = {}
        self._seen: Seen | None = None
        self._learnt = EngineClock(self.process)
        self.clock = self.build.clock(self.process, self._learnt)
        self._registry = FarRegistry(self.process, self.engine, self.cluster)
        self.world.start(self.process, self._run)

    def crash(self) -> None:
        self.process.alive = False

    def request(self, store_id: str, op: StoreOp, tell: Told, handed_on: bool = False) -> None:
        """Carried out here, or handed on, once, to whom this node takes for the owner."""
        for tenure in self.tenures.values():
            if tenure.holding.id == store_id and tenure.store is not None and not tenure.ending:
                tenure.put(op, tell)
                return
        owner = None if handed_on else self._owner(store_id)
        if owner is None:
            tell(OpResult(error=Moved.code))
        else:
            here, there = self.process, owner.process
            bring = partial(
                owner.request, store_id, op, lambda it: self.world.carry(there, here, partial(tell, it)), True
            )
            self.world.carry(here, there, bring)

    def _owner(self, store_id: str) -> SimNode | None:
        """By the last look: it may have been dead for long."""
        for holding in self._seen.holdings if self._seen else ():
            if holding.id == store_id and holding.owner not in ("", self.membership.me.id):
                return self.others[holding.owner.split(".")[0]]
        return None

    def _run(self) -> None:
        while not (self.membership.me.leaving and not self.tenures):
            try:
                self._release_ended()
                self._follow(self._look())
            except ServerAway:
                pass
            self.world.sleep(self.process, TICK_MS)
        self.process.alive = False  # it has left

    def _look(self) -> Todo:
        asked_at = self.process.elapsed_ms()
        self._seen = seen = self._registry.look(self.membership.beat())
        answered_at = self.process.elapsed_ms()
        self._learnt.learn(seen.now_ms, asked_at, answered_at)
        return self.membership.saw(seen, asked_at, answered_at)

    def _follow(self, todo: Todo) -> None:
        for number in todo.lost:
            self.tenures.pop(number).end()
            self.membership.gone(number)
        for holding in todo.take:
            epoch = self._registry.claim(holding.number, holding.epoch, self.membership.me.id)
            if epoch is not None:
                self.membership.won(holding.number, epoch)
                self.tenures[holding.number] = SimTenure(self, holding, epoch)
        for holding in todo.give:
            tenure = self.tenures.get(holding.number)
            if tenure is None:
                self._release(holding.number, holding.epoch)
            elif self.membership.me.leaving or not any(each.ending for each in self.tenures.values()):
                tenure.end()
        for gone in todo.forget:
            self._registry.forget(gone)

    def _release_ended(self) -> None:
        for number, tenure in list(self.tenures.items()):
            if tenure.ended:
                self._release(number, tenure.epoch)
                del self.tenures[number]

    def _release(self, number: int, epoch: int) -> None:
        self._registry.release(number, epoch)
        self.membership.gone(number)
