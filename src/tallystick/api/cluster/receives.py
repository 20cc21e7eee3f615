"""A receive over several stores: one store after the other, without waiting for those that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import Any, NamedTuple

from tallystick.api.cluster.present import SOON_SECONDS, Present, is_away
from tallystick.core.errors import StorageFailed, TallystickError
from tallystick.core.limits import PATIENCE_SECONDS
from tallystick.core.wire import Delivery

LEAST_SECONDS = 0.2  # for a store to answer, however many there are
HELD_SECONDS = 2.0  # for which messages of a late answer are kept for the next receive of the same kind

Ask = Callable[[str], Coroutine[Any, Any, list[Delivery]]]
GiveBack = Callable[[str, list[Delivery]], Awaitable[object]]


class Found(NamedTuple):
    store: str
    deliveries: list[Delivery]


class Receives:
    """The receives of one broker that go to several stores.

    A store that has not answered within a second is overdue: the next one is asked as well. The overdue receive goes
    on, because its messages are leased once the store carries it out. The next receive of the same kind takes them; if
    none comes in time, they are returned to their store.
    """

    def __init__(self, present: Present) -> None:
        self._present = present
        self._late: dict[Hashable, dict[asyncio.Task[list[Delivery]], str]] = {}
        self._watches: set[asyncio.Task[None]] = set()

    async def first(
        self, kind: Hashable, stores: Sequence[str], ask: Ask, give_back: GiveBack, wait_for_late: bool
    ) -> Found | None:
        """The messages of the first store that has some.

        Args:
            kind: receives with an equal one may take over each other's messages.
            wait_for_late: whether overdue stores get the whole time before the answer is that there are no messages.

        Raises:
            StorageFailed: no store answered in time.
        """
        visit = _Visit(self._taken_over(kind), stores, self._present)
        try:
            return await visit.first(ask, wait_for_late)
        finally:
            for task, store in visit.pending.items():
                if task in visit.overdue and not task.done():
                    self._present.late(store)
            self._keep(kind, visit.pending, give_back)

    def _taken_over(self, kind: Hashable) -> dict[asyncio.Task[list[Delivery]], str]:
        """Those that are under way, or have brought messages. Other answers are too old to count."""
        late = self._late.pop(kind, {}) if self._late else {}
        return {task: store for task, store in late.items() if not task.done() or _brought(task)}

    def _keep(self, kind: Hashable, pending: dict[asyncio.Task[list[Delivery]], str], give_back: GiveBack) -> None:
        for task, store in pending.items():
            self._late.setdefault(kind, {})[task] = store
            watch = asyncio.ensure_future(self._until_held(kind, task, give_back))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)

    async def _until_held(self, kind: Hashable, task: asyncio.Task[list[Delivery]], give_back: GiveBack) -> None:
        await asyncio.wait((task,))
        if _brought(task):
            await asyncio.sleep(HELD_SECONDS)
        late = self._late.get(kind, {})
        store = late.pop(task, None)
        if not late:
            self._late.pop(kind, None)
        if store is not None and (deliveries := _brought(task)):
            with contextlib.suppress(TallystickError):  # their lease ends by itself
                await give_back(store, deliveries)


class _Visit:
    """One pass over the stores. `pending`: the receives whose answer was not used, each with its store."""

    def __init__(
        self, taken_over: dict[asyncio.Task[list[Delivery]], str], stores: Sequence[str], present: Present
    ) -> None:
        self.pending, self.overdue = taken_over, set(taken_over)
        self._taken_over = frozenset(taken_over)
        self._left = [store for store in stores if store not in taken_over.values()]
        self._present = present
        self._failures: list[TallystickError] = []
        self._empty = False  # whether a store has answered that it has no messages
        self._loop = asyncio.get_running_loop()
        self._patience_ends = self._loop.time() + PATIENCE_SECONDS
        self._deadline = self._patience_ends + SOON_SECONDS  # a store's own reason may come a little later

    async def first(self, ask: Ask, wait_for_late: bool) -> Found | None:
        found = self._answered({task for task in self.pending if task.done()})
        until = self._deadline  # by when the newest receive is overdue
        while found is None and (self._left or self.pending) and self._loop.time() < self._deadline:
            if self._left and self.overdue.issuperset(self.pending):
                store, until = self._left.pop(0), self._loop.time() + self._step()
                self.pending[asyncio.ensure_future(ask(store))] = store
            elif self._enough(wait_for_late):
                break
            limit = self._deadline if self.overdue.issuperset(self.pending) else min(until, self._deadline)
            done, _ = await asyncio.wait(
                self.pending, timeout=max(0.0, limit - self._loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            found = self._answered(done)
            if self._loop.time() >= until:
                self._mark_overdue()
        if found is None and not self._empty:
            raise (
                self._failures[0]
                if self._failures
                else StorageFailed(f"no store has answered for {PATIENCE_SECONDS:.0f} s; try again")
            )
        return found

    def _step(self) -> float:
        """How long the newest store may take. After one is overdue, the others share the time that is left."""
        if not self.overdue:
            return SOON_SECONDS
        share = (self._deadline - self._loop.time()) / (len(self._left) + 1)
        return min(SOON_SECONDS, max(LEAST_SECONDS, share))

    def _mark_overdue(self) -> None:
        for task in self.pending.keys() - self.overdue:
            self._present.late(self.pending[task])
            self.overdue.add(task)

    def _enough(self, wait_for_late: bool) -> bool:
        """Whether the receives that are left are not waited for: a store has answered, and they are overdue."""
        late = self._taken_over if wait_for_late else self.overdue
        return self._empty and late.issuperset(self.pending)

    def _answered(self, done: set[asyncio.Task[list[Delivery]]]) -> Found | None:
        """Messages of one store. What the others brought stays pending."""
        for task in done:
            error = task.exception()
            if error is None and task.result():
                return Found(self.pending.pop(task), task.result())
        for task in done:
            self.pending.pop(task)
            error = task.exception()
            if error is None:
                self._empty = True
            elif isinstance(error, TallystickError) and is_away(error):
                self._failures.append(error)
                self._deadline = self._patience_ends
            else:
                raise error
        return None


def _brought(task: asyncio.Task[list[Delivery]]) -> list[Delivery]:
    """The messages of a receive that has ended."""
    return [] if task.cancelled() or task.exception() is not None else task.result()
