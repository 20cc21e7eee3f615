"""Which broker answers for a store: this one, another one, or nobody just now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any

from tallystick.api.access.gate import source_of
from tallystick.api.cluster.circuits import Circuits
from tallystick.api.cluster.peers import PeerSeal, Vouched, told_source
from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.dtm.states import LONGEST_SECONDS
from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.api.serving.forwarding import FORWARDED, Forwarder, PeerWait, target_of
from tallystick.api.store_api import StoreApi
from tallystick.broker.broker import Broker
from tallystick.broker.caller import Caller
from tallystick.broker.cluster.node import Node
from tallystick.broker.door import BrokerDoor
from tallystick.core.addresses import BrokerAddress, broker_address
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, Busy, Moved, NotFound, StorageFailed
from tallystick.core.wire import ClusterBroker, ClusterStore, ClusterView

PREFIX = "/stores/"
DOOR = "/.door/"  # before the name of a method of `BrokerDoor`, in what brokers ask each other
WAIT_SECONDS, LEASES = 6.0, 2
"""How long a request waits for a store that nobody owns: as long as it takes to find that an owner is dead, and a
little more. Who asks without a library of ours is spared most takeovers by that."""
LOOK_SECONDS = 0.05
ALIVE_SECONDS = 0.25
MOST_WAITING = 10_000
_POLLS = ("/receive", "/checks/poll")
ANSWER_SECONDS = 60.0
"""How long a request waits for the next byte of an owner that answers checks. An owner ends its own work in less."""
POLL_SECONDS = 60.0  # the longest `wait_ms`


class Owners:
    def __init__(
        self, node: Node, forwarder: Forwarder, make_api: Callable[[Broker], StoreApi], seal: PeerSeal | None = None
    ) -> None:
        """Without a `seal` nobody is asked who they are, and the others are not told."""
        self.node, self.seal = node, seal
        self._forwarder, self._make_api = forwarder, make_api
        self.circuits = Circuits(forwarder.check, self._advertised, lambda: self._patience)
        self._apis: dict[str, StoreApi] = {}
        self._addresses: dict[str, BrokerAddress] = {}
        self._waiting = 0

    @property
    def _lease_ms(self) -> int:
        return self.node.membership.lease_ms

    @property
    def _patience(self) -> float:
        return max(WAIT_SECONDS, LEASES * self._lease_ms / 1000)

    # --- the map ---------------------------------------------------------------------------------------------------

    def stores(self) -> list[str]:
        """The ids of all stores, in the order of their numbers."""
        seen = self.node.seen
        return [] if seen is None else [holding.id for holding in seen.holdings]

    def own(self) -> list[str]:
        """Those that are answered for here."""
        return [store for store in self.stores() if self.node.broker(store) is not None]

    def view(self) -> ClusterView:
        me, seen = self.node.membership.me, self.node.seen
        if seen is None:
            return ClusterView([], [], me.id, self.node.away, self.node.blind_ms)
        members = [member for member in seen.members if member.url]  # the others are guests, and answer nobody
        urls = {member.id: member.url for member in members if self.node.alive(member.id)}
        taken = set(urls.values())  # who was there before and is dead is a former life of who is there now
        brokers = [member for member in members if member.id in urls or member.url not in taken]
        stores = [
            ClusterStore(
                holding.id,
                holding.number,
                holding.epoch,
                holding.owner,
                f"{urls[holding.owner]}{PREFIX}{holding.id}" if holding.owner in urls else "",
                *self._times(holding.number, holding.owner, holding.owner in urls),
                self._trouble(holding.id),
            )
            for holding in seen.holdings
        ]
        shown = [
            ClusterBroker(
                member.id,
                member.name,
                member.url,
                member.grpc_url,
                member.id in urls,
                member.leaving,
                self.node.silent_ms(member.id),
            )
            for member in brokers
        ]
        in_order = sorted(shown, key=lambda broker: (broker.url, broker.id))
        return ClusterView(stores, in_order, me.id, self.node.away, self.node.blind_ms)

    def _trouble(self, store: str) -> str:
        """Why a store of this broker takes no new messages; empty for the stores of others."""
        if (door := self.door(store)) is not None:
            return door.not_ready() or ""
        unopened = self.unopened().get(store)
        return unopened.detail if unopened is not None else ""

    def _times(self, number: int, owner: str, alive: bool) -> tuple[int | None, int | None]:
        """For how long it has been owned, and for how long it was not before, or is not."""
        node = self.node
        if alive:
            return node.owned_ms(number), node.membership.vacant_ms(number)
        return None, node.silent_ms(owner) if owner else node.owned_ms(number)

    def api(self, store: str) -> StoreApi | None:
        """What answers for the store here."""
        broker = self.node.broker(store)
        if broker is None:
            self._apis.pop(store, None)
            return None
        known = self._apis.get(store)
        if known is None or known.broker is not broker:
            known = self._apis[store] = self._make_api(broker)
        return known

    def unopened(self) -> dict[str, StorageFailed]:
        """What to tell of those that are ours, and nothing can be asked of yet."""
        return {
            store: StorageFailed(
                f"{trouble} (store {store} cannot be opened)" if trouble else f"store {store} is still being opened"
            )
            for store, trouble in self.node.unopened().items()
        }

    def door(self, store: str) -> BrokerDoor | None:
        api = self.api(store)
        return None if api is None else api.door

    def elsewhere(self, store: str) -> str | None:
        """The id of the broker that has it, if that is another one, and alive as far as can be seen. One that had our
        address before us is not, though the others may not know it yet."""
        me = self.node.membership.me
        for holding in () if self.node.seen is None else self.node.seen.holdings:
            if holding.id == store and holding.owner != me.id:
                place = self._address(holding.owner)
                gone = place is None or place.text == me.url or not self.node.alive(holding.owner)
                return None if gone else holding.owner
        return None

    def answering(self, store: str) -> bool:
        """Whether another broker has the store, and nothing shows that it does not answer."""
        owner = self.elsewhere(store)
        place = None if owner is None else self._address(owner)
        return place is not None and self.circuits.answers(place)

    # --- one request -----------------------------------------------------------------------------------------------

    async def answer(self, store: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the owner of a store answer; the path is what is asked of the store. Raises while nothing was
        answered."""
        if store not in self.stores():
            raise NotFound(f"there is no store {store[:40]!r} in this cluster; GET /v1/cluster names them")
        forwarded = any(name == FORWARDED for name, _ in scope["headers"])
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            api, owner = self.api(store), self.elsewhere(store)
            if api is not None:
                await api(scope, receive, send)
                return
            if forwarded and owner is not None:
                raise Moved  # not handed on twice: who sent it here knows less than we do, or more
            failure: Exception = self.unopened().get(store) or Moved("nobody owns this store just now; ask again")
            if owner is not None:
                self._refuse_if_silent(owner)
                try:
                    await self._forward(store, owner, deadline, scope, receive, send)
                    return
                except BrokerUnreachable as unreachable:  # nothing was sent: it may have another owner soon
                    failure = unreachable
            if self.node.unopened().get(store):  # it was tried, and more than once
                raise failure
            if asyncio.get_running_loop().time() >= deadline or self._no_owner_will_come():
                raise StorageFailed(self.node.trouble) if self.node.away else failure
            await self._pause()
            forwarded = False  # it was to be answered here when it came, and has moved since: one more hop

    def _no_owner_will_come(self) -> bool:
        """Or none of whom we would hear: we leave, and nobody stays, or have left, and look no more."""
        return self.node.left.is_set() or (self.node.leaving.is_set() and self.node.alone)

    async def _pause(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Busy("too many requests wait for a store without an owner")
        self._waiting += 1
        try:
            await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._waiting -= 1

    async def _forward(
        self, store: str, owner: str, deadline: float, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """For as long as the owner is alive and answers. While the engine shows no heartbeats, the owner may not
        see them either, and answers that: then until the deadline."""
        place = self._address(owner)
        if place is None:
            raise BrokerUnreachable("the owner of this store has just left")
        wait, limit = PeerWait(), _limit(scope)
        begun = False

        async def noted(event: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(event)

        path = f"{PREFIX}{store}".encode() + scope["raw_path"]
        caller = self._sealed(scope, path)
        self.circuits.asked(place)
        task = asyncio.create_task(self._forwarder.forward(scope, receive, noted, place, path, caller, wait))
        try:
            while not task.done() and self._may_answer(owner, deadline):
                if self.node.leaving.is_set() and not begun and _is_poll(scope):
                    raise Moved("this broker leaves the cluster; ask another one")
                await asyncio.wait((task,), timeout=ALIVE_SECONDS)
                if not task.done():
                    self.circuits.review(place, wait, limit)
            if not task.done():
                raise self._silence(owner)
            await task
            self.circuits.heard(place)
        finally:
            task.cancel()

    def _sealed(self, scope: Scope, path: bytes) -> bytes:
        """Who is asking, as the owner is told; only from where, if nobody is asked."""
        caller: Caller | None = scope.get("caller")
        if self.seal is None:
            return told_source(source_of(scope) if caller is None else caller.source)
        if caller is None:
            raise Moved  # it was ours when the request came, and who sends it was to be found out there
        vouched = Vouched(caller.identity, caller.source, scope.get("of_peer", "route"))
        return self.seal.seal(scope["method"], target_of(scope, path), vouched)

    def _may_answer(self, owner: str, deadline: float) -> bool:
        """As far as we see. Who has left looks no more, and waits as long as its end does."""
        if self.node.left.is_set():
            return True
        sees = self.node.blind_ms < LEASES * self._lease_ms
        return self.node.alive(owner) and (sees or asyncio.get_running_loop().time() < deadline)

    def _silence(self, owner: str) -> Exception:
        if self.node.alive(owner):  # when we could last see
            return StorageFailed(f"{self.node.trouble}; the owner of this store is silent, too; it may have acted")
        return BrokerUnavailable("the owner of this store is silent, and is taken for dead; it may have acted")

    def _refuse_if_silent(self, owner: str) -> None:
        if (place := self._address(owner)) is not None:
            self.circuits.refuse_if_open(place)

    def _address(self, member_id: str) -> BrokerAddress | None:
        """None for a guest, who holds a store for a while and answers nobody (store/shared/visit.py)."""
        if member_id not in self._addresses:
            members = () if self.node.seen is None else self.node.seen.members
            self._addresses = {member.id: broker_address(member.url) for member in members if member.url}
        return self._addresses.get(member_id)

    def _advertised(self, address: BrokerAddress) -> bool:
        """Whether a live broker other than this one has this address."""
        me = self.node.membership.me.id
        members = () if self.node.seen is None else self.node.seen.members
        others = (member.id for member in members if member.id != me)
        return any(self._address(one) == address and self.node.alive(one) for one in others)


def _limit(scope: Scope) -> float:
    """Seconds without a byte after which a request ends although its owner answers checks."""
    if scope["path"].startswith(DTM_PREFIX):
        return ANSWER_SECONDS + LONGEST_SECONDS
    waits = _is_poll(scope) or scope["path"].startswith(DOOR)
    return ANSWER_SECONDS + (POLL_SECONDS if waits else 0.0)


def _is_poll(scope: Scope) -> bool:
    """Whether it waits for what may never come."""
    return scope["path"].endswith(_POLLS) or b"wait_ms=" in scope["query_string"]
