"""A broker process of a cluster: looks at the others, and runs a `Broker` for each store that is its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from tallystick.broker.broker import Broker
from tallystick.broker.cluster.clock import EngineClock
from tallystick.broker.cluster.membership import TICK_MS, Membership, Todo
from tallystick.broker.cluster.moves import Moves
from tallystick.broker.cluster.peer_key import PeerKey
from tallystick.broker.cluster.tenure import OpenStore, Tenure
from tallystick.broker.threads import on_a_thread
from tallystick.store.protocol import Store
from tallystick.store.shared.engine import away
from tallystick.store.shared.registry import Holding, Registry, Seen
from tallystick.store.shared.server import ServerAway

log = logging.getLogger("tallystick.broker.cluster")

T = TypeVar("T")
MakeBroker = Callable[[Store, EngineClock], Broker]
FORGETTING = -1  # in the place of a store's number


class Node:
    """Made inside a running event loop; `run` goes on until `leave` has given everything away, then `close`.

    One task looks and concludes, in turns; stores are claimed, released, opened and closed beside it. Nothing here
    decides what is stored: whatever a node believes, the engine refuses what an earlier owner writes.
    """

    def __init__(
        self,
        membership: Membership,
        registry: Registry,
        open_store: OpenStore,
        make_broker: MakeBroker,
        clock: EngineClock | None = None,
        tick_ms: int = TICK_MS,
    ) -> None:
        self.membership, self.clock = membership, clock or EngineClock()
        self.seen: Seen | None = None  # by the last look
        self.takeovers = 0  # stores that were taken from somebody who is gone
        self.looked, self.leaving, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tenures: dict[int, Tenure] = {}  # by the numbers of their stores
        self._registry, self._open_store, self._make_broker = registry, open_store, make_broker
        self._peer_key = PeerKey(lambda: self._ask(registry.peer_key), self.clock)
        self._tick_seconds = tick_ms / 1000
        self._lost: set[asyncio.Task[None]] = set()  # ends of tenures that are no longer ours
        self._wake = asyncio.Event()
        self._moves = Moves(self._wake.set)
        self._leaving_since = 0
        self._empty_since = 0  # when nothing was its own any more
        self._trouble = ""  # why the registry could not be asked
        self._told: set[str] = set()  # with whom our address does not agree, as it was logged
        self._answered_at = self.clock.elapsed_ms()  # by the registry, when it was last looked at

    @property
    def peer_key(self) -> bytes:
        """What the brokers sign with; known before the first look."""
        return self._peer_key.value

    def broker(self, store_id: str) -> Broker | None:
        """The broker that takes work for this store; None if another node has it, or nobody just now."""
        for tenure in self.tenures.values():
            if tenure.holding.id == store_id and not tenure.ending:
                return tenure.broker
        return None

    def unopened(self) -> dict[str, str]:
        """The stores that are ours and not open, and why; empty words as long as nothing has failed. And the stores
        without an owner that cannot be claimed, because the server has no room."""
        unclaimed = {
            each.id: why
            for each in (() if self.seen is None else self.seen.holdings)
            if (why := self._moves.without_room(each.number)) and not (each.owner and self.alive(each.owner))
        }
        return unclaimed | {
            tenure.holding.id: tenure.trouble
            for tenure in self.tenures.values()
            if tenure.broker is None and not tenure.ending
        }

    def alive(self, member_id: str) -> bool:
        return self.membership.alive(member_id)

    def silent_ms(self, member_id: str) -> int | None:
        return self.membership.silent_ms(member_id, self.clock.elapsed_ms())

    def owned_ms(self, number: int) -> int:
        return self.membership.owned_ms(number, self.clock.elapsed_ms())

    @property
    def away(self) -> bool:
        """Whether the shared engine did not answer when it was last asked who owns what, or lets us wait for it."""
        return bool(self.trouble)

    @property
    def trouble(self) -> str:
        """Why it is away, in the engine's words; empty if it is not."""
        return self._trouble or ("" if self.up_to_date else f"no answer for {self.blind_ms // 1000} s")

    @property
    def blind_ms(self) -> int:
        """How old the last look is: what is believed of the others is from then."""
        return self.clock.elapsed_ms() - self._answered_at

    @property
    def up_to_date(self) -> bool:
        """Whether what was ours with the last look cannot be somebody else's yet: nobody takes anything from a member
        within a lease."""
        return self.blind_ms <= self.membership.lease_ms

    # --- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns once the node has left: nothing is its own any more, and the others know."""
        while True:
            await self._turn()
            heard = not self._trouble or self._unheard  # a full server may never show others that it leaves
            if self.membership.me.leaving and not self._busy and heard and self._taken_over():
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._wake.wait()
            self._wake.clear()
        with contextlib.suppress(ServerAway):
            await self._ask(lambda: self._registry.forget(self.membership.me.id))
        self.left.set()

    @property
    def _busy(self) -> bool:
        """Something is ours, or may become so."""
        return bool(self.tenures or self._moves.under_way() - {FORGETTING})

    def _taken_over(self) -> bool:
        """Whether the others have what was given away: until then those who ask here are told where to go. Not waited
        for longer than a lease: there may be nobody who takes it."""
        self._empty_since = self._empty_since or self.clock.elapsed_ms()
        orphans = self.seen is not None and any(
            not holding.owner or holding.owner == self.membership.me.id for holding in self.seen.holdings
        )
        return self.alone or not orphans or self.clock.elapsed_ms() - self._empty_since >= self.membership.lease_ms

    @property
    def alone(self) -> bool:
        """Nobody else is there who would take over."""
        return not self.membership.others_stay(self.seen)

    def leave(self) -> None:
        """Hand everything over to the others, as fast as what was accepted can be finished."""
        if not self.leaving.is_set():
            self._leaving_since = self.clock.elapsed_ms()
        self.membership.leave()
        self.leaving.set()
        self._wake.set()

    @property
    def leaving_seconds(self) -> float:
        """How long ago it began to leave; 0 if it has not."""
        return (self.clock.elapsed_ms() - self._leaving_since) / 1000 if self.leaving.is_set() else 0.0

    async def close(self) -> None:
        """Let go of what is left, released or not: the others will find that nobody has it."""
        await self._moves.close()
        await self._peer_key.close()
        for number in list(self.tenures):
            self._lose(number)
        await asyncio.gather(*self._lost)

    # --- one look, and what follows from it ----------------------------------------------------------------------

    async def _turn(self) -> None:
        try:
            if not self._peer_key.known:  # before the first beat: afterwards nothing may hold one up
                await self._peer_key.learn()
            self._peer_key.refresh()
            self._follow(await self._look())
            self._release_ended()
            if self._unheard:
                raise ServerAway(self._unheard, full=True)
        except ServerAway as error:
            if not self._trouble:
                log.warning("the cluster cannot be asked who owns what: %s", error)
            self._trouble = away(error)
        except Exception as error:  # whatever it was, a node that looks no more would be taken for dead, and never know
            log.exception("a look at the cluster failed; it is tried again")
            self._trouble = f"a look at the cluster failed: {type(error).__name__}"
        else:
            if self._trouble:
                log.warning("the cluster can be asked again")
            self._trouble = ""

    async def _look(self) -> Todo:
        me, asked_at, moving = self.membership.beat(), self.clock.elapsed_ms(), self._moves.under_way()
        seen = await self._ask(lambda: self._registry.look(me))
        self._refuse_another_cluster(seen)
        self.seen = seen = self._but_for(moving, seen)
        answered_at = self.clock.elapsed_ms()
        if not seen.unheard:  # without a beat of ours, the others may take what is ours
            self._answered_at = answered_at
        self.looked.set()
        self.clock.learn(seen.now_ms, asked_at, answered_at)
        todo = self.membership.saw(seen, asked_at, answered_at)
        self._tell_of_wrong_addresses()
        return Todo(lost=todo.lost) if seen.unheard else todo

    @property
    def _unheard(self) -> str:
        """Why the last look could not store our beat; empty if it could."""
        return "" if self.seen is None else self.seen.unheard

    def _refuse_another_cluster(self, seen: Seen) -> None:
        """Raises `ServerAway` if nothing that was there is there: the engine was emptied, or is another one. To go on
        with what somebody has made in its place since would hide that everything is gone."""
        known = {holding.id for holding in self.seen.holdings} if self.seen is not None else set()
        if known and known.isdisjoint(holding.id for holding in seen.holdings):
            raise ServerAway("the stores of this cluster are not there any more; put them back, or start brokers anew")

    def _but_for(self, moving: Collection[int], seen: Seen) -> Seen:
        """With these stores as they are known here, who were claimed or released while we looked."""
        known = {} if self.seen is None else {each.number: each for each in self.seen.holdings if each.number in moving}
        holdings = tuple(known.get(holding.number, holding) for holding in seen.holdings)
        return msgspec.structs.replace(seen, holdings=holdings)

    def _tell_of_wrong_addresses(self) -> None:
        """Once for each that is new: nothing is lost by it, but requests go astray or fail."""
        me, told = self.membership.me, self._told
        twins, strangers = self.membership.twins(), self.membership.strangers()
        self._told = {*twins, *strangers}
        for twin in (each for each in twins if each not in told):
            log.error("broker %s says that it is at %s, like this one: give each its own --advertise", twin, me.url)
        for stranger in (each for each in strangers if each not in told and each not in twins):
            log.error("broker %s is on another machine and cannot reach %s: say --advertise", stranger, me.url)

    def _follow(self, todo: Todo) -> None:
        for number in todo.lost:
            log.warning("store %s was taken by another broker", self.tenures[number].holding.id)
            self._lose(number)
        for holding in todo.take:
            self._moves.begin(holding.number, partial(self._take, holding))
        self._give(todo.give)
        if todo.forget:
            self._moves.begin(FORGETTING, partial(self._forget, todo.forget))

    async def _take(self, holding: Holding) -> None:
        epoch = await self._ask(lambda: self._registry.claim(holding.number, holding.epoch, self.membership.me.id))
        if epoch is None:
            return  # somebody was faster
        log.info("store %s is ours, epoch %d, after %s", holding.id, epoch, holding.owner or "nobody")
        self._now_has(holding.number, epoch, self.membership.me.id)
        self.takeovers += holding.owner not in ("", self.membership.me.id)
        self.membership.won(holding.number, epoch)
        self.tenures[holding.number] = Tenure(holding, epoch, self._open_store, self._broker_for, self._wake.set)

    def _broker_for(self, store: Store) -> Broker:
        return self._make_broker(store, self.clock)

    def _give(self, holdings: Iterable[Holding]) -> None:
        """One at a time, so that little stands still at once; all of them when the node leaves."""
        for holding in holdings:
            tenure = self.tenures.get(holding.number)
            if self.membership.me.leaving and self._moves.without_room(holding.number):
                pass  # it stays ours by name
            elif tenure is None:
                self._moves.begin(holding.number, partial(self._release, holding.number, holding.epoch))
            elif tenure.ending:
                pass  # it is on its way
            elif self.membership.me.leaving or not any(each.ending for each in self.tenures.values()):
                log.info("store %s is handed over", holding.id)
                tenure.end()

    def _lose(self, number: int) -> None:
        tenure = self.tenures.pop(number)
        tenure.end()
        self._lost.add(tenure.task)
        tenure.task.add_done_callback(self._lost.discard)
        self.membership.gone(number)

    def _release_ended(self) -> None:
        for number, tenure in self.tenures.items():
            if tenure.ended:
                self._moves.begin(number, partial(self._release, number, tenure.epoch))

    async def _release(self, number: int, epoch: int) -> None:
        try:
            await self._ask(lambda: self._registry.release(number, epoch))
        except ServerAway as error:
            if error.full and self.membership.me.leaving:  # the others claim it once this broker is dead
                self.membership.gone(number)
                self.tenures.pop(number, None)
            raise
        self._now_has(number, epoch, "")
        self.membership.gone(number)
        self.tenures.pop(number, None)

    def _now_has(self, number: int, epoch: int, owner: str) -> None:
        """What was done here is known before the next look."""
        if self.seen is not None:
            holdings = tuple(
                Holding(number, each.id, epoch, owner) if each.number == number else each for each in self.seen.holdings
            )
            self.seen = msgspec.structs.replace(self.seen, holdings=holdings)
            self.membership.owned(holdings, self.clock.elapsed_ms())

    async def _forget(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            await self._ask(partial(self._registry.forget, member_id))

    async def _ask(self, question: Callable[[], T]) -> T:
        return await on_a_thread(question, "cluster")
