"""Joining a cluster: the server is looked at, stores are made if nobody did, and a node begins to take its share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator
from functools import partial

import msgspec

from tallystick.broker.broker import Broker
from tallystick.broker.cluster.clock import EngineClock
from tallystick.broker.cluster.membership import TICK_MS, Membership
from tallystick.broker.cluster.node import Node
from tallystick.broker.config import Config
from tallystick.broker.threads import on_a_thread
from tallystick.core.errors import ConfigError, StorageFailed
from tallystick.core.ids import new_member_id
from tallystick.store.protocol import Store
from tallystick.store.shared.engine import away
from tallystick.store.shared.opening import SharedStore, registry_at, server_at, weaknesses_of
from tallystick.store.shared.registry import Holding, Member, Registry
from tallystick.store.shared.server import ServerAway

log = logging.getLogger("tallystick.broker.cluster")

TWIN_SECONDS = 2.0  # a living broker beats several times in it
CLOSE_SECONDS = 2.0  # after the drain timeout, for what is left to close
STORES = 8  # of a cluster whose maker did not say how many


@contextlib.asynccontextmanager
async def joined(config: Config, url: str, grpc_url: str) -> AsyncIterator[Node]:
    """A node that has looked for the first time; at the end it lets go of everything, handed over or not. `url` is
    where the others reach it."""
    registry, weaknesses = await on_a_thread(lambda: entered(config), "join")
    for weakness in weaknesses:
        log.warning("acknowledged messages can be lost: %s", weakness)

    def open_store(holding: Holding, epoch: int) -> Store:
        server = server_at(config.store, holding.number)
        try:
            return SharedStore(server, epoch, config.store_settings(), holding.id)
        except BaseException:  # it is tried again, with connections of its own
            server.close()
            raise

    told = False

    def make_broker(store: Store, clock: EngineClock) -> Broker:
        nonlocal told
        broker = Broker(config, store, clock, weaknesses=weaknesses, up_to_date=lambda: node.up_to_date)
        if not told:  # every store has all tokens
            broker.tell_access()
            told = True
        return broker

    me = Member(new_member_id(), socket.gethostname()[:60], url, grpc_url)
    try:
        await _refuse_a_twin(registry, me, config.lease)
    except BaseException:
        await on_a_thread(registry.close, "leave")
        raise
    node = Node(
        Membership(me, config.lease),
        registry,
        open_store,
        make_broker,
        tick_ms=min(TICK_MS, config.lease // 8),
    )
    running = asyncio.create_task(node.run(), name="cluster")
    try:
        await node.looked.wait()
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # a server that hangs keeps nobody; the fence protects the stores
            left = max(0.0, config.drain_timeout / 1000 - node.leaving_seconds)
            async with asyncio.timeout(left + CLOSE_SECONDS):
                await node.close()
        await on_a_thread(registry.close, "leave")


async def _refuse_a_twin(registry: Registry, me: Member, lease_ms: int) -> None:
    """Raises `ConfigError` if a living broker has our address. Requests for one of two would go to the other.

    The row of our own former life has that address, too, but its beat stands still. So a start after a kill waits for
    a third of a lease, in which a living broker beats more than once."""
    guest = msgspec.structs.replace(me, leaving=True)  # it is given nothing yet
    known: dict[str, int] = {}
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        guest = msgspec.structs.replace(guest, beat=guest.beat + 1)
        try:
            seen = await on_a_thread(partial(registry.look, guest), "join")
        except ServerAway as error:
            raise StorageFailed(away(error)) from error
        there = [member for member in seen.members if member.url == me.url and not member.leaving]
        # One that leaves makes room for its successor, and those that join at the same moment do not see each other.
        for twin in (member for member in there if known.get(member.id, member.beat) != member.beat):
            await _forget(registry, me)
            raise ConfigError(
                f"advertise: broker {twin.id} on {twin.name} already runs at this address (got {me.url}). Set "
                "--advertise to an address at which the other brokers reach this one.",
                field="advertise",
            )
        known = {member.id: member.beat for member in there} | known
        if not known:
            return
        deadline = deadline or time.monotonic() + min(lease_ms / 3_000, TWIN_SECONDS)
        await asyncio.sleep(min(TICK_MS, lease_ms / 8) / 1000)


async def _forget(registry: Registry, me: Member) -> None:
    with contextlib.suppress(ServerAway):  # the others forget it later
        await on_a_thread(partial(registry.forget, me.id), "join")


def entered(config: Config) -> tuple[Registry, tuple[str, ...]]:
    """Where the brokers find each other, with the stores made; and the weaknesses that are put up with."""
    registry = registry_at(config.store)
    try:
        weaknesses = weaknesses_of(config.store, refuse=not config.allow_weak_durability)
        _make(registry, config.stores)
    except ServerAway as error:
        registry.close()
        raise StorageFailed(away(error)) from error
    except BaseException:
        registry.close()
        raise
    return registry, weaknesses


def created(url: str, stores: int) -> tuple[int, bool]:
    """A cluster with its tables, as the first broker makes them: how many stores it has, and whether it is new."""
    with contextlib.closing(registry_at(url)) as registry:
        try:
            before = registry.made()
            _make(registry, stores)
            return registry.made(), not before
        except ServerAway as error:
            raise StorageFailed(away(error)) from error


def _make(registry: Registry, wanted: int) -> None:
    try:
        registry.make(wanted or STORES)
    except ConfigError as error:
        if wanted or error.field != "stores":
            raise
