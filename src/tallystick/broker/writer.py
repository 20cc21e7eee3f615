"""The single writer: takes everything that waits into one group commit, answers when it is durable."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from prometheus_client import Histogram

from tallystick.broker.threads import on_a_thread
from tallystick.core.clock import Clock
from tallystick.core.errors import Busy, Draining, Moved, StorageFailed, StorageFull, TallystickError
from tallystick.core.limits import PATIENCE_SECONDS
from tallystick.core.ops import OpResult, Prepare, PrepareColumns, PreparePart, Send
from tallystick.store.protocol import Result, Store, StoreOp, Written, unwrapped

log = logging.getLogger("tallystick.broker.writer")

T = TypeVar("T")
MAX_BATCH_OPS = 8_192
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_WAITING_OPS = 100_000
RECOVER_EVERY_SECONDS = 0.25  # a store that has failed is tried again, whether somebody asks for something or not

# After a write failed, how long until the store is probed for the next time, if the last probe failed as well.
PROBE_SECONDS = (0.0, 1.0, 2.0, 5.0)
SLOW_SECONDS = 2.0
NEARLY_FULL = (
    "the broker's disk is nearly full: no new messages until there is room; "
    "commits, rollbacks and acknowledgements still work"
)


class SpaceGuard:
    """Keeps a reserve of disk space: new messages are refused before the disk is full, so that what is already
    here can still be resolved, acknowledged and trimmed."""

    EVERY_SECONDS = 0.1

    def __init__(self, path: str | None, min_free_bytes: int) -> None:
        self._path, self._min_free = path, min_free_bytes
        self._looked_at = 0.0
        self._enough = True

    def enough(self) -> bool:
        if self._path is None:
            return True
        now = time.monotonic()
        if now - self._looked_at > self.EVERY_SECONDS:
            self._looked_at = now
            found = os.statvfs(self._path)
            # A little more is needed to leave the reserve than to reach it: at the limit the answer would flap.
            wanted = self._min_free if self._enough else self._min_free + self._min_free // 16
            enough = found.f_bavail * found.f_frsize >= wanted
            if enough != self._enough:
                log.warning("disk space is %s", "enough again" if enough else "below min_free_bytes: no new messages")
            self._enough = enough
        return self._enough


class _Work:
    """Operations that came together, a look at the store, or a look behind them; and who waits for the answer."""

    __slots__ = ("arrived", "future", "look", "ops", "weight")

    def __init__(
        self,
        ops: Sequence[StoreOp],
        look: Callable[[Store], Any] | None,
        future: asyncio.Future[Any],
        weight: int,
    ) -> None:
        self.ops, self.look, self.future, self.weight = ops, look, future, weight
        self.arrived = time.monotonic()


class _Delay(NamedTuple):
    """The engine refused a statement after a long wait, for a lock or for its answer."""

    error: StorageFailed
    ended: float

    def covers(self, work: _Work) -> bool:
        """Whether the work waited as well. With a wait of its own, it would take twice the limit of a request."""
        return self.ended - work.arrived > SLOW_SECONDS


class _Suspension:
    """A write failed, and no probe has succeeded since. Meanwhile new messages are refused, and everything else is
    tried: a commit or an acknowledgement may pass where there is no room for more."""

    def __init__(self, error: TallystickError, seconds: float) -> None:
        """`seconds` is how long the failure took. After a slow one no caller waits for a probe."""
        self.error = error
        self.slow = seconds > SLOW_SECONDS
        self.failed_probes = 0
        self.probe_at = time.monotonic()

    def put_off(self, error: TallystickError) -> None:
        self.error = error
        self.failed_probes += 1
        self.probe_at = time.monotonic() + PROBE_SECONDS[min(self.failed_probes, len(PROBE_SECONDS) - 1)]


class Writer:
    """Runs the store on a thread of its own. All methods but `_run` and below belong to the event loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        space: SpaceGuard,
        max_waiting_bytes: int,
        on_durable: Callable[[Written], None],
        commit_seconds: Histogram,
    ) -> None:
        self._store, self._clock, self._space = store, clock, space
        self._max_waiting = max_waiting_bytes
        self._on_durable = on_durable
        self._commit_seconds = commit_seconds
        self._waiting: list[_Work] = []
        self._waiting_bytes = 0
        self._waiting_ops = 0
        self._condition = threading.Condition()
        self._stopping = False
        self._told = False  # to the log, that the store takes no work
        self._suspension: _Suspension | None = None  # while new messages are refused, because a write failed
        self._delay: _Delay | None = None  # the last one
        self._began: float | None = None  # when the store was asked for what it has not answered yet
        self.refusal: type[TallystickError] = Draining  # what is told to those who come when it has ended
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tallystick-writer", daemon=True)
        self._thread.start()

    def submit(self, ops: Sequence[StoreOp], weight: int = 1_024) -> asyncio.Future[list[Result]]:
        """Hand operations to the next group commit. `weight` is their size in bytes, roughly."""
        return self._put(ops, None, weight)

    def look(self, see: Callable[[Store], T]) -> asyncio.Future[T]:
        """Look at the store between two group commits, when all that it shows is durable."""
        return self._put((), see, 1_024)

    def submit_and_look(
        self, ops: Sequence[StoreOp], see: Callable[[Store], T], weight: int
    ) -> asyncio.Future[tuple[list[Result], T]]:
        """Hand operations to the next group commit, and look at the store when that is durable: one trip for both."""
        return self._put(ops, see, weight)

    def _put(self, ops: Sequence[StoreOp], see: Callable[[Store], Any] | None, weight: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._condition:
            if self._stopping:
                raise self.refusal()
            if (silence := self._silence()) is not None:
                self._tell(silence)
                raise StorageFailed(silence)
            if self._waiting and (
                self._waiting_bytes + weight > self._max_waiting or self._waiting_ops > MAX_WAITING_OPS
            ):
                raise Busy()
            self._waiting.append(_Work(ops, see, future, weight))
            self._waiting_bytes += weight
            self._waiting_ops += len(ops)
            self._condition.notify()
        return future

    @property
    def store_id(self) -> str:
        return self._store.id

    def failure(self) -> str | None:
        """Why the store takes no new messages just now; None if it does."""
        return self._not_writing() or self._silence() or (None if self._space.enough() else NEARLY_FULL)

    def _not_writing(self) -> str | None:
        """Why the last write failed, if none has succeeded since."""
        suspension = self._suspension
        return self._store.failure() or (None if suspension is None else suspension.error.detail)

    def _silence(self) -> str | None:
        began = self._began
        if began is None or not self._store.remote:
            return None
        seconds = time.monotonic() - began
        return None if seconds < PATIENCE_SECONDS else f"the shared store has not answered for {seconds:.0f} s"

    def _tell(self, trouble: str | None) -> None:
        """Once when it begins, and once when it is over. Whoever meets it, and tries again, need not tell of it."""
        if trouble is not None and not self._told:
            log.warning("store %s takes no work: %s", self.store_id, trouble)
        elif trouble is None and self._told:
            log.warning("store %s works again", self.store_id)
        self._told = trouble is not None

    async def stop(self) -> None:
        """Finish what waits, then end."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        await on_a_thread(self._thread.join, "tallystick-stop")

    # --- the writer's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._store.remote:
            self._probe_opened()
        while True:
            works = self._take()
            if works is None:
                return
            works = self._without_delayed(works)
            made: list[Written] = []
            slow = self._suspension is not None and self._suspension.slow
            self._began = time.monotonic()
            if not slow:
                self._resume(made, works)
            answers = self._commit(works, made)
            self._loop.call_soon_threadsafe(self._deliver, works, answers, made)
            if slow:  # those who wait were refused first: this may take as long as the failure did
                self._resume(made := [])
                self._loop.call_soon_threadsafe(self._deliver, (), (), made)
            self._began = None
            self._tell(self._not_writing())

    def _probe_opened(self) -> None:
        """A server that is full lets a store be opened. Without a probe, the broker would be ready until the first
        write is refused."""
        self._began = time.monotonic()
        try:
            self._store.probe()
        except (StorageFailed, StorageFull) as error:
            self._suspend(error)
        except Exception:
            log.exception("store %s: the probe after opening failed", self.store_id)
        self._began = None
        self._tell(self._not_writing())

    def _resume(self, made: list[Written], waiting: Sequence[_Work] = ()) -> None:
        """After a failure: opens the store again, and probes it."""
        if self._store.failure() is None and self._suspension is None:
            return
        began = time.monotonic()
        if self._store.failure() is not None:
            self._try_to_recover(made)
        if not self._probed() and waiting and self._store.failure() is not None:
            self._try_to_recover(made)  # what waits may pass where the probe did not
        if self._suspension is not None:
            self._suspension.slow = time.monotonic() - began > SLOW_SECONDS

    def _take(self) -> list[_Work] | None:
        """What is to be done next; nothing if it is time to try a store again that has failed; None at the end."""
        with self._condition:
            while not self._waiting:
                if self._stopping:
                    return None
                failed = self._store.failure() is not None or self._suspension is not None
                if not self._condition.wait(RECOVER_EVERY_SECONDS if failed else None):
                    return []
            ops = size = count = 0
            for work in self._waiting:
                if count and (ops + len(work.ops) > MAX_BATCH_OPS or size + work.weight > MAX_BATCH_BYTES):
                    break
                ops, size, count = ops + len(work.ops), size + work.weight, count + 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._waiting_bytes -= size
            self._waiting_ops -= ops
            return taken

    def _without_delayed(self, works: list[_Work]) -> list[_Work]:
        """Those that did not wait for a statement that the engine refused. The others get its error: nothing of them
        is carried out."""
        delay = self._delay
        delayed = [] if delay is None else [work for work in works if delay.covers(work)]
        if delay is None or not delayed:
            return works
        self._loop.call_soon_threadsafe(self._deliver, delayed, [delay.error] * len(delayed), ())
        return [work for work in works if not delay.covers(work)]

    def _note_delay(self, error: StorageFailed, seconds: float) -> None:
        if self._store.remote and seconds > SLOW_SECONDS:
            self._delay = _Delay(error, time.monotonic())

    def _commit(self, works: list[_Work], made: list[Written]) -> list[Any]:
        """The answer of each work: results, what a look saw, or the exception that it gets. What became durable on
        the way is put into `made`."""
        began = time.perf_counter()
        ops = [op for work in works for op in work.ops]
        try:
            results = iter(self._write(ops, made) if ops else ())
        except (StorageFailed, StorageFull) as failed:
            self._suspend(failed)
            if isinstance(failed, StorageFailed):
                self._note_delay(failed, time.perf_counter() - began)
            return [failed if work.look is None or work.ops else self._look(work, work.look) for work in works]
        except Exception:
            return self._commit_each(works, made)
        answers = [self._answer(work, [next(results) for _ in work.ops]) for work in works]
        if ops:
            self._commit_seconds.observe(time.perf_counter() - began)
        return answers

    def _answer(self, work: _Work, results: list[Result]) -> Any:
        if work.look is None:
            return results
        seen = self._look(work, work.look)
        return (results, seen) if work.ops and not isinstance(seen, Exception) else seen

    def _commit_each(self, works: list[_Work], made: list[Written]) -> list[Any]:
        """One of these met an error of ours, and nothing of their group commit was written: each by itself, so that
        what one client asked for is no harm to another."""
        if len(works) > 1:
            return [answer for work in works for answer in self._commit([work], made)]
        log.exception("a group commit failed; nothing of it was written")
        return [TallystickError("internal error, nothing was stored; the broker's log has the details")]

    def _write(self, ops: list[StoreOp], made: list[Written]) -> list[Result]:
        now = self._clock.now_ms()
        if not self._space.enough():
            refused = OpResult(error=StorageFull.code, detail=NEARLY_FULL)
        elif (suspension := self._suspension) is not None:
            refused = OpResult(error=suspension.error.code, detail=suspension.error.detail)
        else:
            made.append(self._store.write(ops, now))
            return made[-1].results
        # Removing the ops that would add data, and putting the refusals back where they were.
        made.append(self._store.write([op for op in ops if not _adds_data(op)], now))
        allowed = iter(made[-1].results)
        return [refused if _adds_data(op) else next(allowed) for op in ops]

    def _suspend(self, error: TallystickError) -> None:
        """A store without room refuses units, and has not failed."""
        works = self._store.failure() is None and not isinstance(error, StorageFull)
        if works or isinstance(error, Moved) or error.extra.get("stopped"):
            return  # it works, or will not work again: there is nothing to probe
        if self._suspension is None:
            self._suspension = _Suspension(error, time.monotonic() - (self._began or time.monotonic()))
        else:
            self._suspension.error = error

    def _probed(self) -> bool:
        """False if a probe was due and failed. The suspension ends once a write has succeeded that needs as much room
        as the one that failed."""
        suspension = self._suspension
        if suspension is None or self._store.failure() is not None or time.monotonic() < suspension.probe_at:
            return True
        try:
            self._store.probe()
        except (StorageFailed, StorageFull) as error:
            suspension.put_off(error)
            return False
        self._suspension = None
        return True

    def _look(self, work: _Work, see: Callable[[Store], Any]) -> Any:
        if self._delay is not None and self._delay.covers(work):
            return self._delay.error
        began = time.monotonic()
        try:
            return see(self._store)
        except Exception as error:
            if isinstance(error, StorageFailed):
                self._note_delay(error, time.monotonic() - began)
            return error

    def _try_to_recover(self, made: list[Written]) -> None:
        try:
            turned_up = self._store.recover() if self._space.enough() else None
        except OSError:  # the directory itself cannot be looked at
            turned_up = None
        if turned_up is None:
            time.sleep(0.1)
        else:
            made.append(turned_up)

    # --- back on the event loop ----------------------------------------------------------------------------------

    def _deliver(self, works: Sequence[_Work], answers: Sequence[Any], made: Sequence[Written]) -> None:
        for written in made:
            self._on_durable(written)
        for work, answer in zip(works, answers, strict=True):
            if work.future.done():
                continue  # the one who asked is gone; what it asked for is done all the same
            if isinstance(answer, Exception):
                work.future.set_exception(answer)
            else:
                work.future.set_result(answer)


def _adds_data(op: StoreOp) -> bool:
    return isinstance(unwrapped(op), Prepare | PrepareColumns | PreparePart | Send)
