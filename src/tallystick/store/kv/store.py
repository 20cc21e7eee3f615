"""The store: carries out operations in order, one atomic unit a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tallystick.core.errors import StorageFailed, StorageFull, TallystickError
from tallystick.core.ops import OpResult
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.engine import Changes, Engine, EngineFailed, Superseded
from tallystick.store.kv.foresight import foreseen
from tallystick.store.kv.handlers import handlers
from tallystick.store.kv.looks import Looks
from tallystick.store.kv.probe import probe_like
from tallystick.store.kv.visible import Visible
from tallystick.store.protocol import Result, StoreOp, StoreSettings, Written, unwrapped


class KvStore(Looks):
    """A `Store` over an ordered key-value engine."""

    def __init__(self, store_id: str, open_engine: Callable[[], Engine], settings: StoreSettings) -> None:
        self.id = store_id
        self._open_engine = open_engine
        self._refused: Changes | None = None  # the last unit that the engine did not write
        super().__init__(open_engine(), settings)

    def _load(self, engine: Engine) -> None:
        super()._load(engine)
        self._handlers = handlers(self._reader)

    def write(self, ops: Sequence[StoreOp], now: int) -> Written:
        if self._failure is not None:
            raise self._failure.told()
        batch = Batch(self._engine, self._catalog, self.settings, now)
        changes: Changes | None = None
        try:
            if self._engine.remote:
                batch.foresee(foreseen(batch, ops))
            results = [self._carry_out(batch, op) for op in ops]
            changes = batch.finish()
            if not changes.empty():
                self._visible.expect(batch.trimmed)
                self._engine.write(changes)
        except EngineFailed as error:
            self._refused = changes
            if error.full:
                self._reload()
            else:
                self._failure = error
            raise error.told() from error
        except (StorageFailed, StorageFull) as error:
            # A look got no answer, however often it was tried. Nothing was written; all is read again by `recover`.
            self._failure = _failure_of(error)
            raise
        except BaseException:
            # Nothing was written, but the catalog may be ahead of the engine: read it again.
            self._reload()
            raise
        self._visible.follow(self._catalog, batch.touched, batch.deleted)
        return Written(results, batch.appended(), batch.called, batch.events, batch.counted(), batch.made)

    def _reload(self) -> None:
        try:
            self._load(self._engine)
        except (StorageFailed, StorageFull) as error:  # what is at hand is not to be trusted until it was read
            self._failure = _failure_of(error)

    def _carry_out(self, batch: Batch, op: StoreOp) -> Result:
        try:
            return self._handlers[type(op)](batch, op)
        except (StorageFailed, StorageFull):
            raise  # no fault of this operation's: it ends the unit
        except TallystickError as error:
            if error.code == "outcome_conflict":
                batch.event("conflict", getattr(unwrapped(op), "gid", ""), error.detail)
            return OpResult(error=error.code, detail=error.detail, field=error.field)

    def recover(self) -> Written | None:
        """Open the engine anew after a failure that may pass; what it then holds is what is durable."""
        before = self._visible
        if self._failure is not None:
            if not self._failure.may_pass:
                return None
            try:
                self._engine.close()
                self._load(self._open_engine())
            except Superseded as error:
                self._failure = error
                return None
            except Exception as error:  # whatever an engine raises: it does not work yet
                full = isinstance(error, StorageFull)
                self._failure = EngineFailed(f"still failing: {error}", may_pass=True, full=full)
                return None
            self._failure = None
        return self._turned_up(before)

    def probe(self) -> None:
        """Raises what `write` would raise, if the engine cannot write a unit like the last one that it refused.

        A connection, or a unit that needs no room, says nothing about that: a server whose disk is full has both."""
        if self._failure is not None:
            raise self._failure.told()
        written, deleted = probe_like(self._refused)
        try:
            self._engine.write(written)
            self._engine.write(deleted)
        except EngineFailed as error:
            if not error.full:  # without room, the engine is where it was
                self._failure = error
            raise error.told() from error
        self._refused = None

    def _turned_up(self, before: Visible) -> Written:
        """What is there that was not seen before. Which calls came in line nobody can tell any more: any may have."""
        appended = {
            (shown.topic.name, queue)
            for shown in self._visible.topics()
            for queue, end in enumerate(shown.ends)
            if end > before.end(shown.topic, queue)
        }
        called = {channel.id for channel in self._visible.channels if channel.via == "call"}
        return Written([], appended, called, [], Counter())

    def close(self) -> None:
        self._engine.close()


def _failure_of(error: StorageFailed | StorageFull) -> EngineFailed:
    return EngineFailed(error.detail, may_pass=True, full=isinstance(error, StorageFull))
