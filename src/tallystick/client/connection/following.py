"""A peer whose place may change: a store of a cluster, or the cluster as a whole, behind whichever broker answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.connection.exchange import DISTRUST, passes_elsewhere
from tallystick.client.connection.peer import BrokerPeer
from tallystick.core.errors import BrokerUnavailable, Busy, StorageFull, TallystickError
from tallystick.core.ops import Position
from tallystick.core.placing import cluster_queue
from tallystick.core.wire import ClusterStore

AGAIN_SECONDS = 0.25
"""How long a question waits for word of another way before it is asked again."""


class FollowingPeer(BrokerPeer):
    """Its connections are pointed to where its store is worked on; what waits goes along.

    `address` names it for good, in errors and in what is written down; it, too, is an address that brokers answer at.
    """

    def __init__(
        self,
        address: str,
        settings: Settings,
        stats: Stats,
        way: str,
        on_trouble: Callable[[], None],
        may_another_answer: Callable[[], bool],
    ) -> None:
        self._may_another_answer = may_another_answer
        super().__init__(address, settings, stats, way)
        self._on_trouble = on_trouble
        self._in_vain: set[str] = set()  # ways on which nobody answered, since the store last changed hands
        self._news = asyncio.Event()

    @property
    def way(self) -> str:
        """Where it leads just now."""
        return self.wire.address

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        query: Mapping[str, str | int] | None = None,
        timeout: float,
    ) -> bytes:
        """Ask until there is an answer, wherever it comes from, for the client's own timeout after the first failure:
        every question may be asked twice."""
        loop = asyncio.get_running_loop()
        until = None
        while True:
            try:
                content = await super().request(method, path, body=body, query=query, timeout=timeout)
            except TallystickError as error:
                self.failed(error)
                until = until or loop.time() + min(timeout, self._timeout)
                if not _is_of_the_place(error) or loop.time() >= until:
                    raise
                await self._hear_news(AGAIN_SECONDS)
            else:
                self.mark(True)
                self.circuit.probe_answered()
                return content

    def failed(self, error: TallystickError) -> None:
        if not _is_of_the_place(error) or error.extra.get("way", self.way) != self.way:
            return  # it is there and says so; or has been left since
        if self.may_another_answer():
            error.extra.pop(DISTRUST, None)  # the certificate of another way may be trusted, and lead there as well
        if isinstance(error, BrokerUnavailable):
            self._in_vain.add(self.way)
        self._news.clear()
        self.mark(False)
        super().failed(error)
        self._on_trouble()

    def may_another_answer(self) -> bool:
        return self._may_another_answer()

    async def _hear_news(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):  # then without
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def lead(self, ways: Sequence[str], *, anew: bool) -> None:
        """Take the first of these ways on which somebody may answer. `anew`: the place has changed, so that nothing
        is known of them."""
        if anew:
            self._in_vain.clear()
        way = next((way for way in ways if way not in self._in_vain), None)
        if way is None:
            self._in_vain.clear()
            way = ways[0]
        if way == self.way and not anew:
            return
        if way != self.way:
            self.wire.point_to(way, cut=anew)
            self.threads.point_to(way, cut=anew)
        self._news.set()
        self.ops.hurry()
        self.unconfirmed.hurry()

    def reopen(self, way: str) -> None:
        """Somebody answers there again."""
        self._in_vain.discard(way)


class StorePeer(FollowingPeer):
    """One store of a cluster."""

    def __init__(
        self,
        seen: ClusterStore,
        stores: int,
        settings: Settings,
        stats: Stats,
        on_trouble: Callable[[], None],
        may_another_answer: Callable[[], bool],
    ) -> None:
        address = store_address(settings.addresses[0], seen.id)
        super().__init__(address, settings, stats, address, on_trouble, may_another_answer)
        self.store = seen.id
        self.owner_url = ""
        self.epoch = 0
        self._number, self._stores = seen.number, stores

    def position(self, at: Position) -> Position:
        """With its queue as a cluster numbers the queues of all its stores."""
        return Position(at.topic, cluster_queue(at.queue, self._number, self._stores), at.offset)

    @property
    def introduced(self) -> bool:
        return self.limits is not None


class FrontPeer(FollowingPeer):
    """All stores of a cluster as one: any broker, which finds the store of each request by itself."""

    def answered_by(self, store: str) -> str:
        return store


def store_address(broker: str, store: str) -> str:
    """Where any broker of a cluster answers for one store."""
    return f"{broker}/stores/{store}"


def _is_of_the_place(error: TallystickError) -> bool:
    return passes_elsewhere(error) and not isinstance(error, Busy | StorageFull)
