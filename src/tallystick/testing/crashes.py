"""Crashes to play: a block that does nothing more from one of its steps on, as if its process had died there.

The process lives, so the same client answers the check-back afterwards; in reality another member of its group would,
or the same one after its restart.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from tallystick.barrier.adapters.base import Adapter
from tallystick.client.transactions.script import (
    Answer,
    Ask,
    InDatabase,
    Local,
    Put,
    Script,
    Tell,
    UserCode,
    watch_scripts,
)
from tallystick.client.transactions.script import Step as Played
from tallystick.core.ops import Prepare, Rollback, Send
from tallystick.testing.steps import STEPS, Step

_MARKS = ("mark_committed_here", "mark_committed", "outbox_put_here", "outbox_put")
_installing = threading.Lock()


class SimulatedCrash(BaseException):
    """The process would be gone. Not an `Exception`, so that no code takes it for a failure that it can deal with."""


class CrashAt:
    """`with crash_at(step):` the first block that comes to that step in it ends there, as if its process had died.

    From there on the block does nothing to the database and nothing towards the broker: what its local transaction
    had not committed is rolled back, as the database does for a process that is gone, and the connection stays usable
    for the test. A `SimulatedCrash` leaves the block, and everything around it up to this `with`, which ends it.

    It is an error if no block comes to the step. Blocks on other threads and loops count, handlers too; the second
    block goes on undisturbed.
    """

    def __init__(self, step: Step) -> None:
        __tracebackhide__ = True  # of pytest's; here and in `__exit__`: what counts is the line of the test
        self.step: Step = step
        if step not in STEPS:
            raise ValueError(f"{step!r} is none of the steps {', '.join(map(repr, STEPS))}")
        self.happened = False
        self._crash = SimulatedCrash(f"the process died here: {step}")
        self._dead: Adapter | None = None

    def __enter__(self) -> CrashAt:
        if not _installing.acquire(blocking=False):
            raise RuntimeError("another crash is being played: one crash_at at a time")
        watch_scripts(self._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        __tracebackhide__ = True
        watch_scripts(None)
        _installing.release()
        if error is None and not self.happened:
            raise AssertionError(f"no block came to the step {self.step!r}: nothing was begun, or it was rolled back")
        if error is not self._crash:
            return False
        self._crash.__traceback__ = None  # or the frames that died would live as long as this object
        self._dead = None
        return True

    def __repr__(self) -> str:
        return f"crash_at({self.step!r})"

    # What the client's scripts pass

    def _watch(self, script: Script[Any], adapter: Adapter | None) -> Script[Any]:
        return self._watched(script, adapter)

    def _watched(self, script: Script[Any], adapter: Adapter | None) -> Script[Any]:
        """The same script, up to the step."""
        seen = _Seen()
        try:
            step = next(script)
            if self._is_dead(adapter, step):
                self._bury(script)
                raise self._crash
            while True:
                if not self.happened and seen.before(self.step, step):
                    yield from self._die(script, adapter)
                if not self.happened and self.step == "answer lost" and isinstance(step, Tell) and _is_outcome(step):
                    # Heard, and the answer waited for, so that the broker surely has it; then it is lost.
                    yield Ask(step.broker, step.op, step.timeout)
                    yield from self._die(script, adapter)
                try:
                    result = yield step
                except BaseException as failure:
                    step = script.throw(failure)
                    continue
                seen.passed(step)
                if not self.happened and seen.after(self.step, step):
                    yield from self._die(script, adapter)
                step = script.send(result)
        except StopIteration as end:
            if not self.happened and seen.at_the_end(self.step):
                yield from self._die(None, adapter)
            return end.value

    def _is_dead(self, adapter: Adapter | None, step: Played) -> bool:
        """Whether it belongs to the block that died. What begins anew on its connection is another one."""
        if adapter is None or adapter is not self._dead:
            return False
        if _is_begin(step):
            self._dead = None
        return self._dead is not None

    def _die(self, script: Script[Any] | None, adapter: Adapter | None) -> Script[None]:
        self.happened = True
        if adapter is not None:
            self._dead = adapter
            try:
                yield Local.ROLLBACK  # what a database does for a process that is gone
            except Exception as failure:
                self._crash.add_note(f"the connection could not be rolled back: {failure}")
        if script is not None:
            self._bury(script)
        raise self._crash

    def _bury(self, script: Script[Any]) -> None:
        """Play the rest of a script, none of whose steps is done: what it keeps in memory is put in order."""
        try:
            while True:
                script.throw(self._crash)
        except BaseException as end:  # however it ends: nobody is left to hear of it
            if end is not self._crash and not isinstance(end, StopIteration):
                self._crash.add_note(f"after its death the block would have raised {end!r}")


crash_at = CrashAt


class _Seen:
    """What has passed of one script."""

    def __init__(self) -> None:
        self._committed = self._handled = False

    def before(self, wanted: Step, step: Played) -> bool:
        if wanted == "before begin":
            return _is_begin(step)
        if wanted == "before prepare":
            return _is_mark(step) or _is_prepare(step) or step is Local.COMMIT
        if wanted in ("after mark", "after prepare", "before commit"):
            return step is Local.COMMIT
        return False

    def passed(self, step: Played) -> None:
        self._committed = self._committed or step is Local.COMMIT
        self._handled = self._handled or isinstance(step, UserCode)

    def after(self, wanted: Step, step: Played) -> bool:
        if wanted == "after begin":
            return _is_begin(step)
        if wanted == "after mark":
            return _is_mark(step)
        if wanted == "after prepare":
            return isinstance(step, Answer) or (isinstance(step, Ask) and _is_prepare(step))
        return wanted == "after commit" and step is Local.COMMIT

    def at_the_end(self, wanted: Step) -> bool:
        """A block that sends nothing tells nobody; a handler without a database has no local commit."""
        if self._committed:
            return wanted == "answer lost"
        return self._handled and wanted in STEPS[STEPS.index("before commit") :]


def _is_begin(step: Played) -> bool:
    return isinstance(step, InDatabase) and step.operation.name == "begin_tied"


def _is_mark(step: Played) -> bool:
    return isinstance(step, InDatabase) and step.operation.name in _MARKS


def _is_prepare(step: Played) -> bool:
    return isinstance(step, Ask | Put) and isinstance(step.op, Prepare | Send)


def _is_outcome(step: Tell) -> bool:
    """Whether it tells of a commit: a `Commit`, or the row of an outbox."""
    return not isinstance(step.op, Rollback)
