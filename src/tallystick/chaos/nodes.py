"""The nodes of a run: workers, brokers and the ways between them; struck, relieved and looked after."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tallystick.chaos.evidence import Names
from tallystick.chaos.ground import Ground
from tallystick.chaos.journal import Pause
from tallystick.chaos.ledgers import found_consumer, found_producer
from tallystick.chaos.network import Crossing, Network
from tallystick.chaos.proxy import Weather
from tallystick.chaos.schedule import ROLES, Blow, Role, Sizes, Strike
from tallystick.chaos.worker import WorkerSettings, as_argument
from tallystick.core.errors import TallystickError
from tallystick.local import LocalService, Process, module

STOP_SECONDS = 10.0
MOST_CRASHES = 20
WEATHER: dict[Blow, Weather] = {"cut": "cut", "stall": "stall", "lose": "lose"}
ENGINE_WEATHER: dict[Blow, Weather] = {"engine-cut": "cut", "engine-stall": "stall", "engine-lose": "lose"}
WORST_FIRST: tuple[Weather, ...] = ("cut", "stall", "lose", "calm")


class ChaosNode(NamedTuple):
    role: Role
    number: int


class Nodes:
    """All processes of a run. Everything is started and killed by the thread that made it: the kernel ends a child with
    the thread that started it."""

    def __init__(self, names: Names, sizes: Sizes, ground: Ground, settings: WorkerSettings) -> None:
        self._names, self._sizes, self._ground, self._settings = names, sizes, ground, settings
        self._network = Network(names.directory / "network.log")
        self._crossings: dict[tuple[ChaosNode, ChaosNode], Crossing] = {}
        self._engine_ways: list[Crossing] = []  # of the brokers, by their numbers
        self._weather: defaultdict[ChaosNode, Weather] = defaultdict(lambda: "calm")
        self._workers: dict[ChaosNode, Process] = {}
        self._down: set[ChaosNode] = set()
        self._coming: dict[ChaosNode, float] = {}  # brokers that were started, and when, and do not take work yet
        self._paused: dict[ChaosNode, float] = {}
        self.pauses: defaultdict[ChaosNode, list[Pause]] = defaultdict(list)
        self.struck: Counter[tuple[str, str]] = Counter()
        self.crashed: Counter[Role] = Counter()  # ends that nobody asked for
        self.slowest_start = 0.0  # of a broker, until it took work

    def start(self) -> None:
        workers = [node for node in self._all() if node.role in ("producer", "consumer")]
        for node in workers:
            found = found_producer if node.role == "producer" else found_consumer
            found(self._names.database(*node))
            for broker in self._brokers():
                self._crossings[node, broker] = self._network.cross(self._broker(broker).port)
        for broker, ways in zip(self._brokers(), self._ground.lay_ways(self._network), strict=False):
            self._crossings[broker, broker] = ways.inward
            self._engine_ways.append(ways.engine)
        self._network.start()
        self._ground.start()
        for node in workers:
            self._start_worker(node)

    def _start_worker(self, node: ChaosNode) -> None:
        settings = msgspec.structs.replace(
            self._settings,
            number=node.number,
            urls=self._ground.addresses(node.number, [self._crossings[node, one].url for one in self._brokers()]),
            database=str(self._names.database(*node)),
            journal=str(self._names.journal(*node)),
        )
        command = module(f"tallystick.chaos.{node.role}", as_argument(settings))
        process = self._workers[node] = Process(node.role, command, self._names.log(*node))
        process.process_group = 0
        process.spawn()

    # --- blows -----------------------------------------------------------------------------------------------------

    def strike(self, strike: Strike) -> None:
        node = ChaosNode(strike.role, strike.number)
        self.struck[strike.role, strike.blow] += 1
        if strike.blow == "kill":
            self._down.add(node)
            self._process(node).kill()
            if node.role == "broker":
                self._change(node, "cut")  # nobody listens there now, so nobody does on the way to it
        elif strike.blow == "pause":
            self._paused[node] = time.monotonic()
            self._process(node).pause()
        elif strike.blow in ENGINE_WEATHER:
            self._network.change([self._engine_ways[node.number]], ENGINE_WEATHER[strike.blow])
        else:
            self._change(node, WEATHER[strike.blow])

    def relieve(self, strike: Strike) -> None:
        node = ChaosNode(strike.role, strike.number)
        if strike.blow == "kill":
            self._process(node).spawn()
            self._down.discard(node)
            if node.role in ("broker", "engine"):
                self._coming[node] = time.monotonic()
        elif strike.blow == "pause":
            self._process(node).resume()
            self.pauses[node].append(Pause(self._paused.pop(node), time.monotonic()))
        elif strike.blow in ENGINE_WEATHER:
            self._network.change([self._engine_ways[node.number]], "calm")
        else:
            self._change(node, "calm")

    def tend(self) -> bool:
        """Look after all; whether every broker that was started takes work. What ended by itself, which nothing here
        should, is started again."""
        for node in self._all():
            if node not in self._down and not self._process(node).running:
                self._note_end(node)
                self._process(node).spawn()
        for node in [node for node in self._coming if self._service(node).ready]:
            took = time.monotonic() - self._coming.pop(node)
            if node.role == "broker":
                self.slowest_start = max(self.slowest_start, took)
                self._change(node, "calm")
        return not self._coming

    def _note_end(self, node: ChaosNode) -> None:
        if node in self._coming and self._ground.starts_may_fail:
            return
        self.crashed[node.role] += 1
        if self.crashed.total() > MOST_CRASHES:
            raise TallystickError(f"{node.role} {node.number} does not stay; see {self._process(node).log}")

    def _change(self, node: ChaosNode, weather: Weather) -> None:
        """A way has the worse weather of its two ends."""
        self._weather[node] = weather
        ways: defaultdict[Weather, list[Crossing]] = defaultdict(list)
        for ends, crossing in self._crossings.items():
            if node in ends:
                ways[min((self._weather[end] for end in ends), key=WORST_FIRST.index)].append(crossing)
        for worst, crossings in ways.items():
            self._network.change(crossings, worst)

    # --- the end ---------------------------------------------------------------------------------------------------

    def stop_workers(self) -> None:
        """In good order, so that their last words are in their journals."""
        for process in self._workers.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._workers.values():
            process.end_by(deadline)

    def end(self) -> None:
        """Whatever state they are in."""
        for process in self._workers.values():
            process.kill()
        self._ground.end()
        self._network.close()

    # --- which is which ----------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[ChaosNode]:
        return (
            ChaosNode(role, number) for role, size in zip(ROLES, self._sizes, strict=True) for number in range(size)
        )

    def _brokers(self) -> list[ChaosNode]:
        return [ChaosNode("broker", number) for number in range(self._sizes.broker)]

    def _broker(self, node: ChaosNode) -> LocalService:
        return self._ground.brokers[node.number]

    def _service(self, node: ChaosNode) -> LocalService:
        return self._ground.engines[node.number] if node.role == "engine" else self._broker(node)

    def _process(self, node: ChaosNode) -> Process:
        return self._workers[node] if node in self._workers else self._service(node)
