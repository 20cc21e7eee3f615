"""Nodes in the test's own event loop, over a cluster in memory or on a server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

from eventually import SECONDS as PATIENCE_SECONDS
from eventually import eventually_async
from tallystick.broker.broker import Broker
from tallystick.broker.cluster.membership import Membership
from tallystick.broker.cluster.node import Node
from tallystick.broker.config import load_config
from tallystick.store.shared.memory import MemoryCluster
from tallystick.store.shared.opening import SharedStore
from tallystick.store.shared.registry import Holding, Member, Registry, Seen
from tallystick.store.shared.server import ServerAway, SharedServer

TICK_MS = 20
LEASE_MS = 1_500  # long beside a tick, so that a busy machine kills nobody

ServerOf = Callable[[int], SharedServer]


class Switch:
    """The way to a registry, which can be cut for one node alone."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.cut = registry, False
        self.loses_answers = False
        self.hanging: dict[int, threading.Event] = {}  # claims of these stores wait until it is set
        self.waiting: set[int] = set()  # stores whose claims do

    def _through(self) -> Registry:
        if self.cut:
            raise ServerAway("cut")
        return self.registry

    def make(self, count: int) -> None:
        self._through().make(count)

    def look(self, me: Member) -> Seen:
        return self._through().look(me)

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        if number in self.hanging:
            self.waiting.add(number)
            self.hanging[number].wait(PATIENCE_SECONDS)
            self.waiting.discard(number)
        claimed = self._through().claim(number, expected_epoch, owner)
        if self.loses_answers:
            raise ServerAway("no answer")
        return claimed

    def release(self, number: int, epoch: int) -> None:
        self._through().release(number, epoch)

    def forget(self, member_id: str) -> None:
        self._through().forget(member_id)

    def peer_key(self) -> bytes:
        return self._through().peer_key()

    def close(self) -> None:
        """The registry is everybody's."""


class Site:
    """A node, what it runs on, and its main task."""

    def __init__(self, name: str, registry: Registry, server_of: ServerOf) -> None:
        self.name, self.server_of = name, server_of
        self.way = Switch(registry)
        self.config = load_config(flags={"store": "memory"}, environ={})
        member = Member(name, name, f"http://{name}.example")
        self.node = Node(Membership(member, LEASE_MS), self.way, self.open_store, self.make_broker, tick_ms=TICK_MS)
        self.task = asyncio.create_task(self.node.run())

    def open_store(self, holding: Holding, epoch: int) -> SharedStore:
        return SharedStore(self.server_of(holding.number), epoch, self.config.store_settings(), holding.id)

    def make_broker(self, store: object, clock: object) -> Broker:
        return Broker(self.config, store, clock)  # type: ignore[arg-type]

    def stores(self) -> set[str]:
        """The stores that it takes work for."""
        return {t.holding.id for t in self.node.tenures.values() if t.broker is not None and not t.ending}

    def broker(self, store_id: str) -> Broker:
        broker = self.node.broker(store_id)
        assert broker is not None
        return broker

    def die(self) -> None:
        """The process is gone, as far as the others can see; its brokers go on believing."""
        self.task.cancel()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.node.close()


class Cluster:
    def __init__(self, registry: Registry, server_of: ServerOf) -> None:
        self.registry, self.server_of = registry, server_of
        self.sites: dict[str, Site] = {}
        self.ids = {holding.id for holding in self.seen().holdings}

    def seen(self) -> Seen:
        """By somebody who comes and goes unseen."""
        seen = self.registry.look(Member("looker", "", "", leaving=True))
        self.registry.forget("looker")
        return seen

    def start(self, *names: str) -> list[Site]:
        for name in names:
            self.sites[name] = Site(name, self.registry, self.server_of)
        return [self.sites[name] for name in names]

    async def until_spread(self, *names: str) -> None:
        """Until these have all stores, each its share."""

        async def look() -> bool:
            owned = [self.sites[name].stores() for name in names]
            sizes = [len(stores) for stores in owned]
            together = set[str]().union(*owned)
            return together == self.ids and sum(sizes) == len(self.ids) and max(sizes) - min(sizes) <= 1

        await eventually_async(look, f"an even spread over {names}")


@contextlib.asynccontextmanager
async def running(cluster: Cluster, *names: str) -> AsyncIterator[Cluster]:
    cluster.start(*names)
    try:
        await cluster.until_spread(*names)
        yield cluster
    finally:
        await asyncio.gather(*(site.close() for site in cluster.sites.values()))


def cluster_of(stores: int, *names: str) -> contextlib.AbstractAsyncContextManager[Cluster]:
    """In memory."""
    memory = MemoryCluster(stores)
    return running(Cluster(memory, memory.server), *names)
