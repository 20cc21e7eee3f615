"""Threads for blocking work, each with a connection of its own.

A database connection often belongs to the thread that opened it, so a thread opens, uses and closes its own.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from tallystick.client.base import forks
from tallystick.client.base.opened_connections import OpenedConnections

log = logging.getLogger("tallystick.client")

T = TypeVar("T")


class Slot:
    """What one thread keeps from one job to the next."""

    def __init__(self) -> None:
        self.kept: Any = None
        self._close: Callable[[], None] | None = None

    def keep(self, thing: Any, close: Callable[[], None]) -> None:
        self.kept, self._close = thing, close

    def forget(self) -> None:
        """Close what is kept. It may be broken already, and that is why it is let go."""
        close, self.kept, self._close = self._close, None, None
        if close is not None:
            try:
                close()
            except Exception as failure:
                log.debug("closing a connection: %s", failure)


class Turn:
    """One of the turns at a place, taken until its job has ended."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._job: Future[Any] | None = None

    def lasts_until(self, job: Future[Any]) -> None:
        """The job goes on although its result is not waited for any more."""
        self._job = job

    def end(self) -> None:
        if self._job is None:
            self._give_back()
            return
        loop = asyncio.get_running_loop()

        def ended(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._give_back)

        self._job.add_done_callback(ended)


class _Place:
    """A semaphore, and how many use it or wait for it."""

    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.users = 0


class Workers:
    """A fixed number of daemon threads that take jobs in the order of their coming."""

    def __init__(self, name: str, count: int) -> None:
        self.connections = OpenedConnections()
        self._places: dict[Hashable, _Place] = {}
        self._jobs: queue.SimpleQueue[Callable[[Slot], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[Slot], T]) -> Future[T]:
        future: Future[T] = Future()

        def run(slot: Slot) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(job(slot))
            except BaseException as failure:
                future.set_exception(failure)

        self._jobs.put(run)
        return future

    @asynccontextmanager
    async def turn_at(self, place: Hashable, at_once: int) -> AsyncIterator[Turn]:
        """On the event loop: wait until fewer than `at_once` jobs are under way at a place, such as a database."""
        known = self._places.get(place) or self._places.setdefault(place, _Place(at_once))
        known.users += 1

        def leave() -> None:
            known.users -= 1
            if not known.users:
                self._places.pop(place, None)

        def give_back() -> None:
            known.free.release()
            leave()

        try:
            await known.free.acquire()
        except BaseException:
            leave()
            raise
        turn = Turn(give_back)
        try:
            yield turn
        finally:
            turn.end()

    def _work(self) -> None:
        slot = Slot()
        while (job := self._jobs.get()) is not None:
            with forks.database_work():
                job(slot)
        slot.forget()

    def stop(self) -> None:
        """No new jobs; each thread ends after the one it is at. Does not wait."""
        for _ in self._threads:
            self._jobs.put(None)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on one of the threads."""
        return threading.current_thread() in self._threads

    @property
    def alive(self) -> bool:
        """Whether a thread is still at work."""
        return any(thread.is_alive() for thread in self._threads)
