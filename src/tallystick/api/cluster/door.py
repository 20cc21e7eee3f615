"""The door of a cluster: what is asked without naming a store is asked of the stores that it concerns."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar

import msgspec
from prometheus_client.registry import Collector

from tallystick.api.cluster.access import ClusterAccess
from tallystick.api.cluster.asking import Method, finish_without_client
from tallystick.api.cluster.callers import ClusterCallers
from tallystick.api.cluster.dividing import MARK, joined, numbered, refused
from tallystick.api.cluster.metrics import ClusterMetrics
from tallystick.api.cluster.owners import Owners
from tallystick.api.cluster.present import SOON_SECONDS
from tallystick.api.cluster.queues import check_empty, merged_group, merged_topic
from tallystick.api.cluster.receives import Receives
from tallystick.broker.caller import Caller
from tallystick.broker.config import Config
from tallystick.broker.door import WEIGHT, BrokerDoor
from tallystick.core.access import Evidence
from tallystick.core.calls import CallsView
from tallystick.core.errors import BrokerUnavailable, Busy, Draining, Moved, NotFound, TallystickError
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import GroupName
from tallystick.core.ops import (
    ClientOp,
    Commit,
    CommitOffsets,
    Nack,
    OpResult,
    Outcome,
    Prepare,
    PrepareColumns,
    Rollback,
)
from tallystick.core.placing import store_for
from tallystick.core.wire import (
    CheckPoll,
    CheckRequest,
    ClusterView,
    Delivery,
    GroupView,
    ReceiveRequest,
    ResetRequest,
    TopicSpec,
    TopicView,
    TransactionView,
)

T = TypeVar("T")
POLL_AGAIN_SECONDS = 0.05
TURN_WAIT_SECONDS = 10.0
LOOK_AGAIN_MS = 500  # for messages that become visible without anything being appended


class ClusterDoor(ClusterAccess):
    def __init__(self, owners: Owners, config: Config, of_the_process: Sequence[Collector] = ()) -> None:
        super().__init__(owners)
        self.limits, self.browser_hosts = config.limits(), config.browser_hosts
        self._receives = Receives(self._present)
        self._metrics = ClusterMetrics(owners, of_the_process)
        self.callers = ClusterCallers(owners, self._asking)

    async def caller_of(self, evidence: Evidence) -> Caller:
        return await self.callers.caller_of(evidence)

    # --- what a client does ----------------------------------------------------------------------------------------

    async def batch(self, ops: Sequence[ClientOp | PrepareColumns], weight: int = WEIGHT) -> list[OpResult | None]:
        """Each store carries out its own in a group commit of its own. If all belong to one, what it raises is raised;
        else it is the answer to those that were meant for it."""
        divided = [self._divided_op(op) for op in ops]
        by_store: dict[str, list[tuple[int, ClientOp]]] = defaultdict(list)
        for index, pieces in enumerate(divided):
            for store, piece in pieces:
                by_store[store].append((index, piece))
        parts = (
            [await self._batch(store, some, weight) for store, some in by_store.items()]
            if len(by_store) == 1
            else await asyncio.gather(*(self._part(store, some, weight) for store, some in by_store.items()))
        )
        answers: dict[int, list[tuple[str, OpResult | None]]] = defaultdict(list)
        for store, part in zip(by_store, parts, strict=True):
            for (index, _), result in zip(by_store[store], part, strict=True):
                answers[index].append((store, result))
        for index, op in enumerate(ops):
            if isinstance(op, CommitOffsets) and any(one and one.error == NotFound.code for _, one in answers[index]):
                answers[index] = [
                    await self._in_empty(piece, one) for piece, one in zip(divided[index], answers[index], strict=True)
                ]
        return [joined(op, answers[index]) for index, op in enumerate(ops)]

    async def _in_empty(
        self, asked: tuple[str, ClientOp], told: tuple[str, OpResult | None]
    ) -> tuple[str, OpResult | None]:
        """Whoever has read all queues of a topic stores a place in those that are empty, too."""
        (store, piece), (_, result) = asked, told
        if result is None or result.error != NotFound.code or not isinstance(piece, CommitOffsets):
            return told
        try:
            for offsets in (piece.offsets, piece.expected or {}):
                await self._check_empty(store, piece.topic, offsets)
        except TallystickError as error:
            return store, refused(error)
        return store, None

    def _divided_op(self, op: ClientOp | PrepareColumns) -> list[tuple[str, ClientOp]]:
        if isinstance(op, PrepareColumns):
            raise TypeError("columns are handed on as they come")
        return self._places.divided(op) or [(self._spare(), op)]

    async def _batch(self, store: str, some: list[tuple[int, ClientOp]], weight: int) -> list[OpResult | None]:
        stores = self._owners.stores()
        results = await self._ask(store, BrokerDoor.batch, [op for _, op in some], weight)
        return [numbered(result, stores.index(store), len(stores)) for result in results]

    async def _part(self, store: str, some: list[tuple[int, ClientOp]], weight: int) -> list[OpResult | None]:
        try:
            return await self._batch(store, some, weight)
        except TallystickError as error:
            if error.retryable or len(some) == 1:
                return [refused(error)] * len(some)
        # One of them is wrong, and nothing was stored: each by itself, so that it is no harm to the others.
        return [(await self._part(store, [one], weight))[0] for one in some]

    async def commit_of_group(self, op: Commit, group: GroupName, weight: int = WEIGHT) -> OpResult:
        store = self._places.of_gid(op.gid)
        try:
            return await self._ask(store, BrokerDoor.commit_of_group, op, group, weight)
        except NotFound:  # an owner of an earlier version, which has no such method
            (result,) = await self.batch([op], weight)
            return result or OpResult()

    async def do_and_show(self, op: Prepare | Commit | Rollback, weight: int = WEIGHT) -> TransactionView:
        return await self._ask(self._places.of_gid(op.gid), BrokerDoor.do_and_show, op, weight)

    def new_gid(self, messages: Sequence[OutgoingMessage] = ()) -> str:
        return new_gid(self._places.of_messages(messages))

    def new_gid_of(self, app: str) -> str:
        return new_gid(self._places.of_app(app))

    # --- what an operator does -------------------------------------------------------------------------------------

    async def resolve(self, gid: str, outcome: Outcome) -> TransactionView:
        return await self._of_gid(BrokerDoor.resolve, gid, outcome)

    async def resume(self, gid: str) -> TransactionView:
        return await self._of_gid(BrokerDoor.resume, gid)

    async def hurry(self, gid: str) -> TransactionView:
        return await self._of_gid(BrokerDoor.hurry, gid)

    async def hurry_all(self, after_ms: int, limit: int) -> tuple[int, bool]:
        """One store after the other: each is asked for what is left of the limit."""
        done, more = 0, False
        for store in self._owners.stores():
            if not more or done < limit:
                count, others = await self._ask(store, BrokerDoor.hurry_all, after_ms, limit - done)
                done, more = done + count, more or others
        return done, more

    async def resume_calls(self, gid: str) -> None:
        await self._of_gid(BrokerDoor.resume_calls, gid)

    async def stop_calls(self, gid: str) -> None:
        await self._of_gid(BrokerDoor.stop_calls, gid)

    async def subscribe(self, topic: str, url: str, remark: str) -> None:
        async with self._turn(f"call-topic/{topic}"):
            await self._each_to_its_end(BrokerDoor.subscribe, topic, url, remark)

    async def unsubscribe(self, topic: str, url: str) -> None:
        async with self._turn(f"call-topic/{topic}"):
            await self._each_to_its_end(BrokerDoor.unsubscribe, topic, url, known=True)

    async def drop_call_topic(self, topic: str) -> None:
        async with self._turn(f"call-topic/{topic}"):
            await self._each_to_its_end(BrokerDoor.drop_call_topic, topic, known=True)

    async def put_topic(self, name: str, spec: TopicSpec) -> TopicView:
        """On every store alike; `queues` is how many each of them has."""
        async with self._turn(f"topic/{name}"):
            return merged_topic(await self._each_to_its_end(BrokerDoor.put_topic, name, spec))

    async def delete_topic(self, name: str) -> None:
        async with self._turn(f"topic/{name}"):
            await self._each_to_its_end(BrokerDoor.delete_topic, name, known=True)

    @asynccontextmanager
    async def _turn(self, what: str) -> AsyncIterator[None]:
        """Those who change one thing at once, at whichever brokers, do it one after the other: the owner of one store
        says whose turn it is. Else each store would end with another's word. The work goes on if its client goes: a
        change that a client has given up must not come after the turn."""
        finish_without_client()
        loop, holder = asyncio.get_running_loop(), secrets.token_hex(8)
        home, deadline = store_for(what, self._owners.stores()), loop.time() + TURN_WAIT_SECONDS
        while not await self._asking.ask(home, self._asking.me, BrokerDoor.take_turn, what, holder):
            if loop.time() >= deadline:
                raise Busy(f"{what.partition('/')[2]} is being changed by others all the time; try again")
            await asyncio.sleep(POLL_AGAIN_SECONDS)
        try:
            yield
        finally:
            with contextlib.suppress(TallystickError):  # it ends by itself
                await self._asking.ask(home, self._asking.me, BrokerDoor.give_turn_back, what, holder)

    async def _each_to_its_end(self, method: Method[T], *args: Any, known: bool = False) -> list[T]:
        """Asked of each store. No error is told before all have answered: nothing of it may come after the turn. With
        `known` some may not know the name, as long as one does."""
        asked = (self._ask(store, method, *args) for store in self._owners.stores())
        told = await asyncio.gather(*asked, return_exceptions=True)
        errors = [one for one in told if isinstance(one, BaseException)]
        missing = [one for one in errors if known and isinstance(one, NotFound)]
        if len(missing) < len(errors):
            raise next(one for one in errors if one not in missing)
        if len(missing) == len(told):
            raise missing[0]
        return [one for one in told if not isinstance(one, BaseException)]

    async def trim(self, topic: str, offsets: dict[int, int]) -> None:
        finish_without_client()
        for store, some in self._divided(offsets):
            try:
                await self._ask(store, BrokerDoor.trim, topic, some)
            except NotFound:
                await self._check_empty(store, topic, some)

    async def reset_group(self, group: str, to: ResetRequest) -> GroupView:
        finish_without_client()
        if to.offsets is None:
            return merged_group(await self._where_known(BrokerDoor.reset_group, group, to))
        found = await self._where_known(BrokerDoor.stored_offsets, group, to.topic)
        places = dict(zip(self._owners.stores(), found, strict=True))
        divided = self._divided(to.offsets)
        for store, some in divided:  # before anything is moved
            if places[store] is None:
                await self._check_empty(store, to.topic, some)
        for store, some in divided:
            if places[store] is not None:
                await self._ask(store, BrokerDoor.reset_group, group, ResetRequest(to.topic, offsets=some))
        return await self.stored_offsets(group, to.topic)

    async def _check_empty(self, store: str, topic: str, offsets: dict[int, int]) -> None:
        """A store that nobody has sent this topic's messages to does not have it: its queues are empty then."""
        stores = self._owners.stores()
        views = await self._where_known(BrokerDoor.topic, topic)
        number = stores.index(store)
        if views[number] is not None:
            raise NotFound(f"the group has no place in the queues that store {store} has of {topic!r}", field="group")
        check_empty(merged_topic(views), number, len(stores), offsets)

    async def forget_app(self, app: str) -> None:
        await self._where_known(BrokerDoor.forget_app, app)

    # --- long polls ------------------------------------------------------------------------------------------------

    async def ends(
        self, names: Sequence[str] | None, position: int | None, wait_ms: int
    ) -> tuple[list[TopicView], int]:
        found = await self._each(BrokerDoor.ends, names, None, 0)
        if position == _position(found) and wait_ms:
            positions = dict(zip(self._owners.stores(), (at for _, at in found), strict=True))
            await self._until_appended(names, positions, wait_ms)
            found = await self._each(BrokerDoor.ends, names, None, 0)
        by_name = [{view.name: view for view in views} for views, _ in found]
        known = sorted(set().union(*by_name))
        return [
            merged_topic([views.get(name) for views in by_name], self._owners.stores()) for name in known
        ], _position(found)

    async def _until_appended(self, names: Sequence[str] | None, positions: dict[str, int], wait_ms: int) -> None:
        """Until one of these stores has more in these topics than it had."""

        def appended(store: str, at: int) -> Awaitable[Any]:
            return self._through_moves(wait_ms, lambda left: self._ask(store, BrokerDoor.ends, names, at, left))

        await self._unless_leaving(_first(appended(store, at) for store, at in positions.items()))

    async def _through_moves(self, wait_ms: int, poll: Callable[[int], Awaitable[T]]) -> T:
        """What one of several polls brings within this time, whoever owns its store by then. Given up when the owner
        goes, it would leave its caller waiting for the others alone."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            try:
                return await poll(max(0, int((deadline - loop.time()) * 1000)))
            except (Moved, BrokerUnavailable):
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(POLL_AGAIN_SECONDS)

    async def receive(self, group: str, request: ReceiveRequest) -> list[Delivery]:
        """Asks one store after another, each time another one first; receipts name their store. Stores that answer late
        do not hold up the others: their messages come with a later receive."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        while True:
            positions = await self._positions(request.topic)
            found = await self._receive_now(list(positions), group, request, last=loop.time() >= deadline)
            left_ms = int((deadline - loop.time()) * 1000)
            if found or left_ms <= 0:
                return found
            await self._until_appended([request.topic], positions, min(left_ms, LOOK_AGAIN_MS))

    async def _positions(self, topic: str) -> dict[str, int]:
        """Of the stores that answer soon. If none does, one that answers late, or why none does."""

        async def position(store: str) -> tuple[str, int]:
            _, at = await self._ask(store, BrokerDoor.ends, [topic], None, 0)
            return store, at

        stores = self._present.stores()
        found = dict(await _first(map(position, stores), until=lambda _: False, seconds=SOON_SECONDS))
        for store in stores:
            if store not in found:
                self._present.miss(store)
        return found

    async def _receive_now(
        self, stores: Sequence[str], group: str, request: ReceiveRequest, last: bool
    ) -> list[Delivery]:
        """`last`: whether stores that answer late are waited for, because the caller does not ask again."""
        finish_without_client()  # a receive that is given up could have leased messages: they are returned instead
        first, now = next(self._turns) % len(stores), msgspec.structs.replace(request, wait_ms=0)
        identity = self._caller.identity
        found = await self._receives.first(
            (identity.name, identity.kind, identity.token_id, group, msgspec.msgpack.encode(now)),
            [*stores[first:], *stores[:first]],
            lambda store: self._ask(store, BrokerDoor.receive, group, now),
            lambda store, late: self._ask(
                store, BrokerDoor.batch, [Nack(group, [one.receipt for one in late], delay_ms=0)]
            ),
            wait_for_late=last,
        )
        return [] if found is None else self._named(*found)

    def _named(self, store: str, found: list[Delivery]) -> list[Delivery]:
        """With receipts that name the store, and the queues as the cluster numbers them."""
        stores = self._owners.stores()
        for one in found:
            one.receipt = f"{store}{MARK}{one.receipt}"
            one.message.queue = one.message.queue * len(stores) + stores.index(store)
        return found

    async def poll_checks(self, poll: CheckPoll) -> list[CheckRequest]:
        def polled(store: str) -> Awaitable[list[CheckRequest]]:
            def rest(left: int) -> Awaitable[list[CheckRequest]]:
                return self._ask(store, BrokerDoor.poll_checks, msgspec.structs.replace(poll, wait_ms=left))

            return self._through_moves(poll.wait_ms, rest)

        polls = map(polled, self._owners.stores())
        seconds = poll.wait_ms / 1000 + SOON_SECONDS
        told: list[list[CheckRequest]] = await self._unless_leaving(_first(polls, until=bool, seconds=seconds))
        return [check for checks in told for check in checks]

    async def wait_for_calls(self, gid: str, seconds: float) -> CallsView:
        return await self._unless_leaving(self._of_gid(BrokerDoor.wait_for_calls, gid, seconds))

    # --- the cluster itself ----------------------------------------------------------------------------------------

    @property
    def store_id(self) -> str:
        return ""  # it is not one store that answers

    def now_ms(self) -> int:
        return self._owners.node.clock.now_ms()

    def cluster(self) -> ClusterView:
        self._caller.may_see("broker")
        return msgspec.structs.replace(self._owners.view(), not_ready=self.not_ready() or "")

    def not_ready(self) -> str | None:
        node = self._owners.node
        if node.membership.me.leaving:
            return Draining.code
        if node.away:
            return node.trouble
        told = [door.not_ready() for store in self._owners.own() if (door := self._owners.door(store)) is not None]
        told += [error.detail for error in self._owners.unopened().values()]
        return told[0] if told and all(told) else None

    def answered(self, route: str, status: int | str) -> None:
        self._metrics.answered(route, str(status))

    async def metrics(self) -> bytes:
        self._caller.may_see("metrics")
        return await self._metrics.told()

    def known_topic(self, name: str) -> NoReturn:
        raise TypeError("a cluster keeps nothing in memory")

    def call_hosts(self) -> NoReturn:
        raise TypeError("a cluster keeps nothing in memory")

    def read(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("streams are handed on as they come")

    def queues_of(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("columns are handed on as they come")


def _position(found: Sequence[tuple[list[TopicView], int]]) -> int:
    """A number that changes as soon as that of one of the stores does."""
    told = ",".join(str(at) for _, at in found).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=6).digest())


async def _first(works: Any, until: Any = None, seconds: float | None = None) -> list[Any]:
    """What those have brought that were ready first; the others are given up. With `until`, those are waited for that
    have brought something, or all, or after so many seconds one. That one has failed is told only if no other has
    brought anything."""
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    tasks = [asyncio.ensure_future(work) for work in works]
    waiting: set[asyncio.Future[Any]] = set(tasks)
    good: list[asyncio.Future[Any]] = []
    try:
        while waiting:
            left = max(0.0, deadline - loop.time()) if deadline is not None and good else None
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            more = [task for task in done if task.exception() is None]
            good += more
            if any(until is None or until(task.result()) for task in more) or not done:
                break
        return [task.result() for task in good] or [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
