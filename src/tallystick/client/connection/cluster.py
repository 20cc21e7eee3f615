"""The map of a cluster: which store is worked on where, learned again when somebody was not there.

Any broker takes any request, so a map that is out of date is never wrong, only slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.base.tasks import end
from tallystick.client.connection.circuit import AWAY_SECONDS
from tallystick.client.connection.following import FollowingPeer, FrontPeer, StorePeer, store_address
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.views import Views
from tallystick.client.connection.waiting import GivenUp
from tallystick.core.backoff import Backoff
from tallystick.core.errors import TallystickError
from tallystick.core.ids import store_of_gid
from tallystick.core.placing import store_for, weight
from tallystick.core.wire import ClusterStore, ClusterView

log = logging.getLogger("tallystick.client")

REFRESH_SECONDS = 3.0
"""How often it is asked for without need: a store that was handed over is reached through its former owner, which may
not say so."""
LOOK_SECONDS = 0.15
"""How long a request may take before the map is asked for: an owner that is paused does not say that it has lost its
store, and one that leaves may wait for the next owner itself."""
IN_TROUBLE = Backoff(first_ms=50, cap_ms=300)


class Cluster:
    """The stores, each a peer of its own, and all of them together behind `front`."""

    def __init__(self, view: ClusterView, views: Views, settings: Settings, stats: Stats, member: str) -> None:
        self._views = views
        self._trouble = asyncio.Event()
        self._without_owner = False
        self._unanswered_since: float | None = None
        self._trust = LOOK_SECONDS  # in a map that slow requests have found to be true
        hooks = self._trouble.set, self.may_any_answer
        self.front = FrontPeer(",".join(settings.addresses), settings, stats, views.addresses[0], *hooks)
        numbered = sorted(view.stores, key=lambda store: store.number)
        self._by_store = {one.id: StorePeer(one, len(numbered), settings, stats, *hooks) for one in numbered}
        self.stores = sorted(self._by_store.values(), key=lambda peer: weight(peer.store or "", member), reverse=True)
        self._take(view)
        self._following = asyncio.get_running_loop().create_task(self._follow())

    @property
    def peers(self) -> list[FollowingPeer]:
        return [*self._by_store.values(), self.front]

    def may_any_answer(self) -> bool:
        """Whether a broker has shown the cluster of late, so that one of them may answer for any store."""
        since = self._unanswered_since
        return since is None or time.monotonic() - since < AWAY_SECONDS

    def of_key(self, key: str) -> BrokerPeer:
        """Where messages with a key go, whoever sends them: their order is that of one store."""
        return self._by_store[store_for(key, self._by_store)]

    def of_gid(self, gid: str) -> BrokerPeer:
        """The one place of a gid: it names its store, or is of the user's own making, and its hash does."""
        return self._by_store.get(store_of_gid(gid)) or self._by_store[store_for(gid, self._by_store)]

    def of_store(self, store: str) -> BrokerPeer | None:
        return self._by_store.get(store)

    def at(self, address: str) -> BrokerPeer | None:
        """The peer that an address stands for, whichever broker it names."""
        if address == self.front.address:
            return self.front
        _, prefix, store = address.rpartition("/stores/")
        return self._by_store.get(store) if prefix else None

    # Following

    async def _follow(self) -> None:
        tries = 0
        while True:
            calm = all(peer.healthy for peer in self.peers) and not self._without_owner
            tries = 0 if calm else tries + 1
            if calm:
                await self._wait_for_doubt()
            elif tries > 1:
                await asyncio.sleep(IN_TROUBLE.wait_ms(tries - 1) / 1000)
            self._trouble.clear()
            began = time.monotonic()
            try:
                view = await self._views.ask()
                self._unanswered_since = None
                self._take(view)
                if calm:
                    await self._leave_detours()
            except TallystickError as error:
                self._unanswered_since = self._unanswered_since or began
                log.debug("no broker shows the cluster: %s", error)
            except Exception:
                log.exception("the map of the cluster could not be followed; it is tried again")

    async def _wait_for_doubt(self) -> None:
        """Until a request has failed, or takes long; or it is time in any case."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        under_way = self._under_way()
        while loop.time() < began + REFRESH_SECONDS and not self._trouble.is_set():
            with contextlib.suppress(TimeoutError):  # no trouble
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._trouble.wait()
            before, under_way = under_way, self._under_way()
            if not before & under_way:
                self._trust = LOOK_SECONDS
            elif loop.time() > began + self._trust:
                self._trust = min(2 * self._trust, REFRESH_SECONDS)
                return

    def _under_way(self) -> set[object]:
        """Requests with operations. Questions may be long polls, which take long by their nature."""
        return set().union(*(peer.ops.in_flight() | peer.threads.in_flight() for peer in self._by_store.values()))

    def _take(self, view: ClusterView) -> None:
        if not view.brokers:
            return  # of a broker of its own, at an address that was one of ours
        self._views.learn(view)
        self._without_owner = not all(seen.url for seen in view.stores)
        self.front.lead(self._views.addresses, anew=False)
        for seen in view.stores:
            peer = self._by_store.get(seen.id)
            # One who knows less than we do is not believed: it may be cut off from the others.
            if peer is not None and seen.epoch >= peer.epoch:
                self._lead(peer, seen)

    def _lead(self, peer: StorePeer, seen: ClusterStore) -> None:
        around = [store_address(address, seen.id) for address in self._views.addresses]
        url = self._views.followed(seen.url)
        if url is None:  # nobody owns it: any broker waits for the next owner, and hands on what it was given
            peer.lead([peer.way, *around], anew=False)
            return
        anew = (url, seen.epoch) != (peer.owner_url, peer.epoch)
        peer.owner_url, peer.epoch = url, seen.epoch
        peer.lead([url, *around], anew=anew)

    async def _leave_detours(self) -> None:
        """Those who are reached through another broker, because their own could not be: perhaps it can be now."""
        around = [peer for peer in self._by_store.values() if peer.owner_url and peer.way != peer.owner_url]
        for url in {peer.owner_url for peer in around}:
            if await self._views.answers(url.rpartition("/stores/")[0]):
                for peer in around:
                    peer.reopen(url)

    async def close(self, timeout: float) -> GivenUp:
        """Flush what waits, to wherever it belongs by then; how much of it was given up."""
        given_up = await asyncio.gather(*(peer.close(timeout) for peer in self.peers))
        await end(self._following)
        return sum(given_up, GivenUp())

    def let_go(self) -> None:
        for peer in self.peers:
            peer.wire.close()
