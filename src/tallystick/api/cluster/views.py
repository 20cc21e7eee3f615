"""What can be looked at in a cluster: lists of all stores as one, a page after the other."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from tallystick.api.cluster.asking import Asking, Method
from tallystick.api.cluster.dividing import StorePlaces
from tallystick.api.cluster.owners import Owners
from tallystick.api.cluster.present import Present, is_away
from tallystick.api.cluster.queues import by_store, local, merged_group, merged_topic, woven
from tallystick.broker.caller import ANYBODY, nobody
from tallystick.broker.door import BrokerDoor, Whole
from tallystick.core.calls import CallPage, CallsView, CallTopicView, CallView, HostView
from tallystick.core.errors import InvalidRequest, Moved, NotFound, TallystickError
from tallystick.core.ids import store_of_gid
from tallystick.core.message import Slice
from tallystick.core.wire import (
    BrokerInfo,
    GroupView,
    LedgerView,
    Split,
    TableName,
    TopicView,
    TransactionPage,
    TransactionView,
)
from tallystick.store.protocol import TablePage

T = TypeVar("T")
AT = ":"  # between a store's number and a place in its list


class ClusterViews(BrokerDoor):
    def __init__(self, owners: Owners) -> None:  # not as a broker's own: there is no store behind this door
        self._owners = owners
        # Where somebody is to be known, nobody is known before a door is made for them: then it is shut.
        self._caller = ANYBODY if owners.seal is None else nobody("")
        self._asking = Asking(owners)
        self._present = Present(owners)
        self._turns = itertools.count()

    @property
    def open(self) -> bool:
        return self._owners.seal is None

    # --- whom to ask -----------------------------------------------------------------------------------------------

    @property
    def _places(self) -> StorePlaces:
        return StorePlaces(self._owners.stores(), self._spare)

    def _spare(self) -> str:
        """For what may go anywhere: stores that answer, in turns."""
        stores = self._present.nearest()
        return stores[next(self._turns) % len(stores)]

    async def _ask(self, store: str, method: Method[T], *args: Any) -> T:
        try:
            return await self._asking.ask(store, self._caller, method, *args)
        except TallystickError as error:
            if is_away(error):
                self._present.miss(store)
            raise

    async def _of_gid(self, method: Method[T], gid: str, *args: Any) -> T:
        """A gid that names no store may lie elsewhere than its hash says: a batch of an application does."""
        first = self._places.of_gid(gid)
        try:
            return await self._ask(first, method, gid, *args)
        except NotFound:
            if store_of_gid(gid) == first:
                raise
            for store in self._owners.stores():
                with contextlib.suppress(NotFound):
                    if store != first:
                        return await self._ask(store, method, gid, *args)
            raise

    async def _unless_leaving(self, wait: Coroutine[Any, Any, T]) -> T:
        """Who waits here, whichever stores for, is to ask another broker as soon as this one leaves: otherwise its end
        would wait for the longest poll."""
        waiting = asyncio.ensure_future(wait)
        leaving = asyncio.ensure_future(self._owners.node.leaving.wait())
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise Moved("this broker leaves the cluster; ask another one")
            return waiting.result()
        finally:
            waiting.cancel()
            leaving.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)

    async def _each(self, method: Method[T], *args: Any) -> list[T]:
        """What every store says, in the order of their numbers."""
        return await asyncio.gather(*(self._ask(store, method, *args) for store in self._owners.stores()))

    async def _where_known(self, method: Method[T], *args: Any) -> list[T | None]:
        """The same; None of a store that does not know the name. If none does, that is told."""
        asked = (self._ask(store, method, *args) for store in self._owners.stores())
        unknown: list[NotFound] = []

        async def known(asked: Coroutine[Any, Any, T]) -> T | None:
            try:
                return await asked
            except NotFound as error:
                unknown.append(error)
                return None

        answers = await asyncio.gather(*map(known, asked))
        if len(unknown) == len(answers):
            raise unknown[0]
        return list(answers)

    async def _walk(
        self, after: str | None, look: Callable[[str, str | None], Awaitable[tuple[list[T], str | None]]]
    ) -> tuple[list[T], str | None]:
        """A page of the first store that has some from this place on, and where to go on. `look` looks at one store."""
        stores = self._owners.stores()
        number, place = _place(after, len(stores))
        while True:
            rows, following = await look(stores[number], place)
            if following is not None:
                return rows, f"{number}{AT}{following}"
            number, place = number + 1, None
            if number == len(stores) or rows:
                return rows, f"{number}{AT}" if number < len(stores) else None

    # --- transactions and calls ------------------------------------------------------------------------------------

    async def transaction(self, gid: str) -> TransactionView:
        return await self._of_gid(BrokerDoor.transaction, gid)

    async def transactions(
        self, state: str | None, group: str | None, after: str | None, limit: int
    ) -> TransactionPage:
        async def look(store: str, place: str | None) -> tuple[list[TransactionView], str | None]:
            page = await self._ask(store, BrokerDoor.transactions, state, group, place, limit)
            return page.transactions, page.next

        return TransactionPage(*await self._walk(after, look))

    async def whole(self, gid: str, most_bytes: int = 0) -> Whole | None:
        found = await self._of_gid(BrokerDoor.whole, gid, most_bytes)
        if found is None and not store_of_gid(gid):
            wholes = await self._each(BrokerDoor.whole, gid, most_bytes)
            return next((whole for whole in wholes if whole is not None), None)
        return found

    async def wholes(self, state: str | None, after: str | None, limit: int) -> tuple[list[Whole], str | None]:
        return await self._walk(after, lambda store, place: self._ask(store, BrokerDoor.wholes, state, place, limit))

    async def calls(self, gid: str) -> CallsView:
        return await self._of_gid(BrokerDoor.calls, gid)

    async def list_calls(self, state: str | None, after: str | None, limit: int) -> CallPage:
        async def look(store: str, place: str | None) -> tuple[list[CallView], str | None]:
            page = await self._ask(store, BrokerDoor.list_calls, state, place, limit)
            return page.calls, page.next

        return CallPage(*await self._walk(after, look))

    async def call_topics(self) -> list[CallTopicView]:
        """They are the same on every store. While one is being changed, the newest is shown."""
        newest: dict[str, CallTopicView] = {}
        for view in itertools.chain.from_iterable(await self._each(BrokerDoor.call_topics)):
            known = newest.get(view.topic)
            if known is None or view.version > known.version:
                newest[view.topic] = view
        return [newest[topic] for topic in sorted(newest)]

    async def called_hosts(self) -> list[HostView]:
        """Each store has its own share of calls to a host, and its own opinion of it."""
        hosts: dict[str, HostView] = {}
        for one in itertools.chain.from_iterable(await self._each(BrokerDoor.called_hosts)):
            known = hosts.setdefault(one.name, HostView(one.name))
            hosts[one.name] = HostView(
                one.name,
                known.in_flight + one.in_flight,
                known.open or one.open,
                max(known.failures, one.failures),
                max(known.next_probe_at, one.next_probe_at),
            )
        return list(hosts.values())

    # --- topics and groups -----------------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicView:
        return merged_topic(await self._where_known(BrokerDoor.topic, name), self._owners.stores())

    async def offsets_at(self, topic: str, timestamp: int) -> list[int]:
        return woven([found or () for found in await self._where_known(BrokerDoor.offsets_at, topic, timestamp)])

    async def fetch(self, topic: str, queue: int, offset: int, most: int, max_bytes: int, wait_ms: int) -> Slice:
        number, inside = local(queue, len(self._owners.stores()))
        store = self._owners.stores()[number]
        try:
            asked = self._ask(store, BrokerDoor.fetch, topic, inside, offset, most, max_bytes, wait_ms)
            return await (self._unless_leaving(asked) if wait_ms else asked)
        except NotFound:
            view = await self.topic(topic)  # which its first message has made on one store, and not on this one yet
            if queue >= view.queues:
                raise
            return Slice(0, 0, 0, [], view.created_at)

    async def groups(self, group: str | None = None) -> list[GroupView]:
        found = [
            {(view.group, view.topic): view for view in views} for views in await self._each(BrokerDoor.groups, group)
        ]
        names = sorted(set().union(*found))
        return [merged_group([views.get(name) for views in found]) for name in names]

    async def stored_offsets(self, group: str, topic: str) -> GroupView:
        return merged_group(await self._where_known(BrokerDoor.stored_offsets, group, topic))

    # --- ledger and tables -----------------------------------------------------------------------------------------

    async def ledger(self, app: str) -> LedgerView:
        known = [view for view in await self._where_known(BrokerDoor.ledger, app) if view is not None]
        return max(known, key=lambda view: view.version)

    async def ledgers(self, after: str, limit: int) -> list[LedgerView]:
        found: Iterable[LedgerView] = itertools.chain.from_iterable(await self._each(BrokerDoor.ledgers, after, limit))
        return sorted(found, key=lambda view: view.app)[:limit]

    async def splits(self, table: TableName, state: str | None, most: int) -> list[Split]:
        """Ranges of one store each."""
        share = max(1, most // len(self._owners.stores()))
        return [
            Split(f"{number}{AT}{split.after or ''}", f"{number}{AT}{split.before or ''}")
            for number, splits in enumerate(await self._each(BrokerDoor.splits, table, state, share))
            for split in splits
        ]

    async def page(
        self,
        table: TableName,
        limit: int,
        after: str | None = None,
        before: str | None = None,
        state: str | None = None,
        group: str | None = None,
        older_than_ms: int | None = None,
    ) -> TablePage:
        stores = self._owners.stores()
        number, place = _place(after, len(stores))
        last, end = (len(stores) - 1, None) if before is None else _place(before, len(stores))
        while True:
            stop = end if number == last else None
            page = await self._ask(
                stores[number], BrokerDoor.page, table, limit, place, stop, state, group, older_than_ms
            )
            if "queue" in page.columns:
                page.columns["queue"] = [queue * len(stores) + number for queue in page.columns["queue"]]
            if page.next is not None:
                return TablePage(page.columns, f"{number}{AT}{page.next}")
            if number >= last:
                return page
            if any(page.columns.values()):
                return TablePage(page.columns, f"{number + 1}{AT}")
            number, place = number + 1, None

    async def info(self) -> BrokerInfo:
        """Of one of the stores, our own if there is one, and what is counted of all of them together."""
        told, stores = await self._each(BrokerDoor.info), self._owners.stores()
        pending = [one.oldest_pending_at for one in told if one.oldest_pending_at is not None]
        return msgspec.structs.replace(
            told[stores.index(self._spare())],
            oldest_pending_at=min(pending, default=None),
            calls_waiting=sum(one.calls_waiting for one in told),
            calls_parked=sum(one.calls_parked for one in told),
        )

    def _divided(self, offsets: dict[int, T]) -> Sequence[tuple[str, dict[int, T]]]:
        """What is said of queues of the cluster, for each store that has some of them."""
        stores = self._owners.stores()
        return [(stores[number], some) for number, some in by_store(offsets, len(stores)).items()]


def _place(after: str | None, stores: int) -> tuple[int, str | None]:
    """A place in the list of all stores: the number of one, and a place there."""
    if after is None:
        return 0, None
    number, mark, place = after.partition(AT)
    if not mark or not number.isdecimal() or int(number) >= stores:
        raise InvalidRequest(f"after: {after[:80]!r} is no place in a list of this cluster", field="after")
    return int(number), place or None
