"""Threads for blocking work, each with a connection of its own.

A database connection often belongs to the thread that opened it, so a thread opens, uses and closes its own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tallystick.client.base import forks

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


class Workers:
    """A fixed number of daemon threads that take jobs in the order of their coming."""

    def __init__(self, name: str, count: int) -> None:
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
    def alive(self) -> bool:
        """Whether a thread is still at work."""
        return any(thread.is_alive() for thread in self._threads)
