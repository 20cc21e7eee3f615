"""One schedule of the simulation: three nodes, two stores, some clients and whatever goes wrong. A seed says it all.

    python tests/cluster/sim_schedule.py SEED [BUG]

plays one again. Whatever happens, at the end every acknowledged transaction has its one outcome, no offset was used
twice, the messages of a key lie in the order of a sender that waits for each, and no lease was both refused and
honoured, nor given to two at a time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
from sim_bugs import BUGS
from sim_clients import (
    CLOCKS_APART_MS,
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    Broken,
    History,
    SimClient,
    SimConsumer,
    SimKeyedProducer,
    SimProducer,
)
from sim_nodes import SETTINGS, Build, SimNode
from sim_world import Line, Process, World

from tallystick.core.message import Chunk, StoredMessage, messages_of
from tallystick.core.ops import Ack
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import Receive, Received
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.memory import MemoryCluster

FAULTS_MS, CHAOS_MS = 10_500, 12_000  # no more faults, and no more tricks of the network
PATIENCE_MS = 300_000  # to come to rest once everything works
STORES = 2

_decode = msgspec.msgpack.Decoder(Chunk).decode


class Schedule:
    def __init__(self, seed: int, bug: str = "") -> None:
        self.seed, self.bug = seed, bug
        self.world = world = World(seed)
        self.cluster = MemoryCluster(STORES, world.engine_ms)
        for number, shard in enumerate(self.cluster.shards):
            shard.id = f"{number:08x}"  # drawn ids would make every run another one
        self.build = BUGS[bug]() if bug else Build()
        self.engine = Process(world, "engine")
        self.history = History()
        self.nodes = [
            SimNode(world, name, self.cluster, self.engine, self.build, self.history.lent) for name in ("a", "b", "c")
        ]
        for node in self.nodes:
            node.others = {other.name: other for other in self.nodes}
        stores = [shard.id for shard in self.cluster.shards]
        about = (self.nodes, stores, self.history)
        self.producers = [SimProducer(world, f"p{number}", *about) for number in range(2)]
        self.keyed = SimKeyedProducer(world, "k0", *about)
        self.keyed.impatient = self.build.impatient_sender
        self.consumers = [SimConsumer(world, f"c{number}", *about) for number in range(2)]
        for consumer in self.consumers:
            consumer.producers = [*self.producers, self.keyed]
        self.faults: Counter[str] = Counter()

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        world = self.world
        kinds: list[tuple[str, Callable[[SimNode], None]]] = [
            ("pause", self._pause),
            ("crash", self._crash),
            ("cut from the engine", self._cut_from_engine),
            ("cut from clients", self._cut_from_clients),
            ("cut from nodes", self._cut_from_nodes),
            ("leave", self._leave),
            ("clock step", self._step),
            ("engine away", self._engine_away),
            ("bad line", self._bad_line),
            ("slow disk", self._slow_disk),
        ]
        for _ in range(world.random.randrange(2, 9)):
            name, fault = world.random.choice(kinds)
            world.later(world.random.uniform(500, FAULTS_MS), partial(self._hit, name, fault))
        world.later(CHAOS_MS, self._heal)

    def _hit(self, name: str, fault: Callable[[SimNode], None]) -> None:
        """Rather somebody who owns a store than somebody who would not be missed."""
        alive = [node for node in self.nodes if node.process.alive]
        owners = [node for node in alive if node.tenures]
        if alive:
            self.faults[name] += 1
            fault(self.world.random.choice(owners if owners and self.world.random.random() < 0.7 else alive))

    def _pause(self, node: SimNode) -> None:
        node.process.paused_until = self.world.now + self.world.random.uniform(200, 8_000)

    def _crash(self, node: SimNode) -> None:
        node.crash()
        self.world.later(self.world.random.uniform(100, 5_000), lambda: self._again(node))

    def _leave(self, node: SimNode) -> None:
        node.membership.leave()
        self.world.later(self.world.random.uniform(2_000, 6_000), lambda: self._again(node))

    def _again(self, node: SimNode) -> None:
        node.crash()  # if it has not ended by itself, or was started meanwhile: one life at a time
        node.start()

    def _cut_from_engine(self, node: SimNode) -> None:
        self._cut(node.process, {"engine"})

    def _cut_from_clients(self, node: SimNode) -> None:
        self._cut(node.process, {client.process.name for client in self._clients()})

    def _cut_from_nodes(self, node: SimNode) -> None:
        self._cut(node.process, set(node.others) - {node.name})

    def _cut(self, process: Process, names: set[str]) -> None:
        process.cut_off |= names
        self.world.later(self.world.random.uniform(300, 7_000), process.cut_off.clear)

    def _bad_line(self, node: SimNode) -> None:
        """To the engine: much is lost or late, and what comes late may come behind what was said long after."""
        world = self.world
        node.process.lines["engine"] = Line(lost=world.random.uniform(0, 0.3), late=world.random.uniform(0.1, 0.5))
        world.later(world.random.uniform(500, 6_000), node.process.lines.clear)

    def _slow_disk(self, node: SimNode) -> None:
        """Of the engine: it answers looks as ever, and what it is to write waits for its turn, given up or not."""
        self.engine.writes_wait_until = self.world.now + self.world.random.uniform(1_000, 6_000)

    def _step(self, node: SimNode) -> None:
        node.process.wall_ahead += self.world.random.choice((-1, 1)) * self.world.random.randrange(1_000, 120_000)

    def _engine_away(self, node: SimNode) -> None:
        names = {each.name for each in self.nodes}
        self._cut(self.engine, names)

    def _heal(self) -> None:
        self.world.calm = True

    # --- the run and its verdict ---------------------------------------------------------------------------------

    def _clients(self) -> list[SimClient]:
        return [*self.producers, self.keyed, *self.consumers]

    def run(self) -> None:
        """Raises `Broken`, with the line that plays it again."""
        self._plan()
        try:
            self.world.run(CHAOS_MS + PATIENCE_MS, len(self._clients()))
            self._judge()
        except Broken as broken:
            again = f"python tests/cluster/sim_schedule.py {self.seed} {self.bug}".strip()
            raise Broken(f"{broken}\nafter {dict(self.faults)}; once more: {again}") from broken
        finally:
            self.world.end()

    def _judge(self) -> None:
        waiting = [client.process.name for client in self._clients() if not client.finished]
        if waiting:
            raise Broken(f"{waiting} wait for something that never comes")
        found = Counter(gid for number in range(STORES) for gid in self._read(number))
        for gid, outcome in self.history.outcomes.items():
            if found[gid] != (outcome == "committed"):
                raise Broken(f"{gid} was acknowledged as {outcome}, and its message is there {found[gid]} times")
        self.history.check_lendings()

    def _read(self, number: int) -> list[str]:
        """The gids of all messages of a store, each at the place where it was seen before."""
        server = self.cluster.server(number)
        fence = server.claim("judge")
        store = KvStore(self.cluster.shards[number].id, lambda: SharedEngine(server, fence.epoch), SETTINGS)
        view = store.topic(TOPIC)
        gids = []
        for queue, end in enumerate(view.ends if view else ()):
            messages = self._messages(store, queue)
            if [message.offset for message in messages] != list(range(end)):
                raise Broken(f"queue {queue} ends at {end} and has {[message.offset for message in messages]}")
            for message in messages:
                self.history.saw((store.id, queue, message.offset), message.gid)
                self.history.read(message.key, message.gid, queue)
                gids.append(message.gid)
        self._consume_the_rest(store)
        return gids

    def _consume_the_rest(self, store: KvStore) -> None:
        """Once every lease has ended, whatever nobody has settled is lent to the judge; what was settled is not."""
        after = int(INVISIBLE_MS + CLOCKS_APART_MS)
        now = self.world.engine_ms() + after
        received = store.write([Receive(GROUP, TOPIC, 1_000, INVISIBLE_MS)], now).results[0]
        self.history.lent(store.id, received, self.world.now + after)
        if isinstance(received, Received):
            store.write([Ack(GROUP, [delivery.receipt for delivery in received.deliveries])], now)
        for group in store.groups(GROUP):
            if group.lag or group.leased:
                raise Broken(f"store {store.id}: {group.lag} messages were lent to nobody, {group.leased} for ever")

    def _messages(self, store: KvStore, queue: int) -> list[StoredMessage]:
        chunks = store.read(TOPIC, queue, 0, 10_000, 10_000_000).chunks
        return [message for chunk in chunks for message in messages_of(_decode(chunk), TOPIC, queue)]


if __name__ == "__main__":
    schedule = Schedule(int(sys.argv[1]), *sys.argv[2:3])
    schedule.run()
    print(f"kept, after {dict(schedule.faults)}, in {schedule.world.steps} steps and {schedule.world.now} ms")
