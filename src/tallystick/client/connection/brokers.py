"""The brokers of a client, or the stores of its cluster: where something new goes, and where something old belongs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

import msgspec

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.refusals import SLOWLY, Refusals, TurnedAway
from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.tasks import end
from tallystick.client.connection.cluster import Cluster
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.views import Views
from tallystick.client.connection.waiting import GivenUp
from tallystick.core.backoff import Backoff
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.ids import new_gid, store_of_gid
from tallystick.core.placing import weight
from tallystick.core.wire import ClusterView

log = logging.getLogger("tallystick.client")

FIRST_LOOK_SECONDS = 1.0
BRIEF_LOOK_SECONDS = 0.5
"""How long after the first use of a client a block waits for the first look, if it needs no broker."""
LOOK_AGAIN = Backoff(first_ms=50, cap_ms=1_000)


class Brokers:
    """All places of a client, on one event loop.

    At its first use it asks whether its addresses are those of a cluster, whose stores are its places then. If nobody
    answers, the addresses are used as they are meanwhile: brokers of a cluster take that, too.
    """

    def __init__(self, settings: Settings, stats: Stats, member: str) -> None:
        self.timeout = settings.timeout
        self._settings = settings
        self._stats = stats
        self._member = member
        self._by_address = {address: BrokerPeer(address, settings, stats) for address in settings.addresses}
        self._strangers: dict[str, BrokerPeer] = {}
        # Each member has its own order of preference, so a fleet spreads over the brokers, and each process
        # stays with one while that is healthy: its batches are larger and the order of its keys is kept.
        self._order = sorted(self._by_address.values(), key=lambda broker: weight(broker.address, member), reverse=True)
        self.cluster: Cluster | None = None
        self.looked = False
        # With one place there is nothing to choose, and no time to lose on choosing.
        self.only: BrokerPeer | None = None
        self._views = Views([broker.address for broker in self._order], settings.credentials)
        self._first_look, self._known = asyncio.Event(), asyncio.Event()
        self._began = time.monotonic()
        self._looking = asyncio.get_running_loop().create_task(self._look())

    # Learning what there is

    async def look(self, seconds: float | None = None) -> None:
        """Wait, for at most `seconds`, until it is known what the addresses are, or that no broker answers now."""
        if not self.looked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._first_look.wait()

    async def look_briefly(self) -> None:
        """Wait for the first look, only shortly after the first use of the client: the caller needs no broker, and
        holds a transaction open."""
        await self.look(max(self._began + BRIEF_LOOK_SECONDS - time.monotonic(), 0.0))

    @property
    def answered(self) -> bool:
        """Whether a broker has answered the first look."""
        return self._known.is_set()

    async def known(self) -> list[BrokerPeer]:
        """All places, once it is known what they are."""
        await self._known.wait()
        return list(self)

    async def _look(self) -> None:
        tries = 0
        refusals = Refusals("this client")
        seconds = min(FIRST_LOOK_SECONDS, self.timeout)
        while not self._known.is_set():
            try:
                with refusals.told():
                    self._learn(await self._views.ask(seconds))
            except TurnedAway:
                tries += 1
                self._looked_once()
                await asyncio.sleep(SLOWLY.wait_ms(tries) / 1000)
            except Exception as error:  # whatever it is, giving up here would leave everybody waiting
                tries += 1
                away = isinstance(error, TallystickError) and error.retryable
                level = logging.DEBUG if tries > 1 else logging.INFO if away else logging.WARNING
                log.log(level, "it is not known yet whether the brokers are a cluster's: %s", error)
                self._looked_once()
                await asyncio.sleep(LOOK_AGAIN.wait_ms(tries) / 1000)

    def _learn(self, view: ClusterView) -> None:
        if view.brokers and view.stores:
            self.cluster = Cluster(view, self._views, self._settings, self._stats, self._member)
            self._order = list(self.cluster.stores)
        self._known.set()
        self._looked_once()

    def _looked_once(self) -> None:
        self.only = self._order[0] if len(self._order) == 1 else None
        self.looked = True
        self._first_look.set()

    # Choosing

    def __iter__(self) -> Iterator[BrokerPeer]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def for_new(self, key: str | None = None) -> list[BrokerPeer]:
        """Where something new may go, best first. On a cluster, what has a key has one place."""
        if key is not None and self.cluster is not None:
            return [self.cluster.of_key(key)]
        return sorted(self._order, key=lambda broker: not broker.healthy)

    def sole(self, key: str | None) -> BrokerPeer | None:
        """The one place where something new may go; None if there is a choice."""
        if key is None or self.cluster is None:
            return self.only
        return self.cluster.of_key(key)

    def most_in_a_transaction(self) -> int | None:
        """How many messages, or calls, a transaction may have at any of them; None while none has said."""
        return max((place.limits.transaction_messages for place in self if place.limits is not None), default=None)

    async def learn_limits(self) -> None:
        """Ask the preferred broker for its limits, unless one has said them; without an answer they stay unknown."""
        await self.look()
        if self.most_in_a_transaction() is None:
            with contextlib.suppress(TallystickError):
                await self.for_new()[0].info()

    async def for_questions(self, seconds: float | None = None) -> BrokerPeer:
        """The broker that is asked if none is named: the preferred one, or any of a cluster for all stores together.

        Waits at most `seconds` for the first look.
        """
        await self.look(seconds)
        return self.for_new()[0] if self.cluster is None else self.cluster.front

    async def for_topics(self) -> list[BrokerPeer]:
        """Who must be told of a topic, so that it is everywhere. The preferred one first."""
        await self.look()
        return list(self) if self.cluster is None else [self.cluster.front]

    def at(self, address: str) -> BrokerPeer:
        """The broker at an address; one that a crashed process wrote down may be missing in our own list."""
        broker = self.cluster.at(address) if self.cluster is not None else None
        broker = broker or self._by_address.get(address)
        if broker is None:
            broker = self._by_address[address] = BrokerPeer(address, self._settings, self._stats)
        return broker

    async def of_row(self, gid: str, address: str) -> BrokerPeer:
        """The broker of an outbox row: by its store if one of ours has it (addresses change), else by its address."""
        await self.look()
        store = store_of_gid(gid.partition(":")[0])
        if self.cluster is not None:
            by_any = self.cluster.front if address in self._views.addresses else self._named_in_a_row(address)
            return self.cluster.of_store(store) or by_any
        if store and self._holding(store) is None:
            await self._ask_stores()
        return (self._holding(store) if store else None) or self._named_in_a_row(address)

    def _named_in_a_row(self, address: str) -> BrokerPeer:
        """What stands in a database was written by whoever may write there: an address that was neither given to this
        client nor is in its map is asked without a token."""
        ours = {*self._by_address, *self._views.addresses}
        of_a_store = self.cluster is not None and self.cluster.at(address) is not None
        if of_a_store or address in ours or address.partition("/stores/")[0] in ours:
            return self.at(address)
        if address not in self._strangers:
            log.warning("outbox rows are for %s, which is none of our brokers: it is asked without a token", address)
            bare = msgspec.structs.replace(self._settings, credentials=self._settings.credentials.without_token())
            self._strangers[address] = BrokerPeer(address, bare, self._stats)
        return self._strangers[address]

    def new_gid(self, key: str | None = None) -> str:
        """A gid for the broker that a new transaction would go to now."""
        return new_gid(self.for_new(key)[0].store or "")

    async def of_gid(self, gid: str, seconds: float | None = None) -> BrokerPeer:
        """The one broker that a gid belongs to, found within `seconds`. A retry of anything uncertain must never reach
        another one."""
        deadline = Deadline(self.timeout if seconds is None else seconds)
        await self.look(deadline.left())
        if self.only is not None:
            return self.only
        if self.cluster is not None:
            return self.cluster.of_gid(gid)
        store = store_of_gid(gid)
        if store:
            broker = self._holding(store) or await self._find(store, deadline.left())
            if broker is not None:
                return broker
        return max(self._order, key=lambda broker: weight(broker.address, gid))

    def _holding(self, store: str) -> BrokerPeer | None:
        # Several brokers may serve one shared store; any of them will do, a healthy one sooner.
        holding = [broker for broker in self.for_new() if broker.store == store]
        return holding[0] if holding else None

    async def _find(self, store: str, seconds: float) -> BrokerPeer | None:
        silent = await self._ask_stores(seconds)
        found = self._holding(store)
        if found is None and len(silent) == 1:
            return silent[0]  # every other broker said that the store is not its own
        if found is None and silent:
            raise BrokerUnavailable(
                f"store {store} is on none of the brokers that answer; it may be on one of "
                f"{', '.join(broker.address for broker in silent)}, which do not"
            )
        return found

    async def _ask_stores(self, seconds: float | None = None) -> list[BrokerPeer]:
        """Have every broker name its store; those that do not answer."""
        unknown = [broker for broker in self._order if broker.store is None]
        await asyncio.gather(*(broker.known_store(seconds) for broker in unknown), return_exceptions=True)
        return [broker for broker in unknown if broker.store is None]

    async def close(self, timeout: float) -> GivenUp:
        """Flush what waits; how much of it was given up."""
        deadline = Deadline(timeout)
        await self._look_at_last(deadline.left())
        await end(self._looking)  # or what it learns now would be closed by nobody
        left = deadline.left()
        closing = [broker.close(left) for broker in (*self._by_address.values(), *self._strangers.values())]
        if self.cluster is not None:
            closing.append(self.cluster.close(left))
        given_up = await asyncio.gather(*closing)
        return sum(given_up, GivenUp())

    async def _look_at_last(self, timeout: float) -> None:
        """Those who wait for the first look hand in what they have before the rest is sent."""
        await self.look(timeout)
        if not self.looked:
            self._looked_once()
            await asyncio.sleep(0)

    def let_go(self) -> None:
        for broker in (*self._by_address.values(), *self._strangers.values()):
            broker.wire.close()
        if self.cluster is not None:
            self.cluster.let_go()
        self._views.close()
