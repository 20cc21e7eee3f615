"""The store: carries out operations in order, one atomic unit a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tallystick.core import ops
from tallystick.core.calls import CallsView, CallTopicView, CallView
from tallystick.core.errors import NotFound, StorageFailed, TallystickError
from tallystick.core.wire import GroupView, LedgerView, TopicView, TransactionView
from tallystick.store import protocol
from tallystick.store.kv import (
    call_topics,
    call_views,
    calls,
    checks,
    delayed,
    hurry,
    leases,
    ledger,
    offsets,
    parts,
    resets,
    tables,
    tombstones,
    topics,
    transactions,
    views,
)
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Catalog
from tallystick.store.kv.engine import Engine
from tallystick.store.kv.reader import Reader
from tallystick.store.kv.visible import Visible
from tallystick.store.protocol import (
    Channel,
    Counts,
    Event,
    Result,
    Slice,
    Split,
    StoreOp,
    StoreSettings,
    TableName,
    TablePage,
    TableQuery,
)


class EngineFailed(Exception):
    """The engine could not write. `may_pass` if more room on the disk would mend it."""

    def __init__(self, reason: str, may_pass: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_pass = may_pass


class KvStore:
    """One writer at a time calls `write` and the views; `read` may be called from any thread beside it."""

    def __init__(self, store_id: str, open_engine: Callable[[], Engine], settings: StoreSettings) -> None:
        self.id = store_id
        self.settings = settings
        self._open_engine = open_engine
        self._failure: EngineFailed | None = None
        self._events: list[Event] = []
        self.totals: Counter[str] = Counter()
        self._appended: set[tuple[str, int]] = set()
        self._called: set[int] = set()
        self._load(open_engine())

    def _load(self, engine: Engine) -> None:
        self._engine = engine
        self._catalog = Catalog(engine)
        self._visible = Visible(self._catalog)
        self._reader = Reader(engine, self._visible)
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type, Callable[[Batch, Any], Result]]:
        reader = self._reader
        return {
            ops.Prepare: transactions.prepare,
            ops.Commit: transactions.commit,
            ops.Rollback: transactions.rollback,
            ops.Send: transactions.send,
            ops.PreparePart: parts.prepare,
            ops.DropParts: parts.drop,
            ops.CommitBatch: ledger.commit,
            ops.Ack: leases.ack,
            ops.Nack: partial(leases.nack, reader=reader),
            ops.Renew: leases.renew,
            ops.CommitOffsets: offsets.commit,
            ops.AnswerChecks: checks.answer,
            protocol.PutTopic: topics.put,
            protocol.DeleteTopic: topics.delete,
            protocol.ClaimChecks: checks.claim,
            protocol.FailChecks: checks.fail,
            protocol.ParkOld: checks.park_old,
            protocol.Resume: checks.resume,
            protocol.OperatorResolve: transactions.operator_resolve,
            protocol.Receive: partial(leases.receive, reader=reader),
            protocol.ResetGroup: partial(resets.reset, reader=reader),
            protocol.PromoteDelayed: delayed.promote,
            protocol.ExpireParts: parts.expire,
            protocol.ExpireTombstones: tombstones.expire,
            protocol.TrimTopics: topics.trim,
            protocol.TrimTo: topics.trim_to,
            protocol.ForgetApp: ledger.forget,
            protocol.ClaimCalls: calls.claim,
            protocol.FinishCalls: calls.finish,
            protocol.RequeueCalls: calls.requeue,
            protocol.ResumeCalls: calls.resume,
            protocol.StopCalls: calls.stop,
            protocol.Hurry: hurry.one,
            protocol.HurryAll: hurry.all_,
            protocol.Subscribe: call_topics.subscribe,
            protocol.Unsubscribe: call_topics.unsubscribe,
            protocol.DropCallTopic: call_topics.drop,
        }

    # --- writing ---------------------------------------------------------------------------------------------

    def write(self, ops: Sequence[StoreOp], now: int) -> list[Result]:
        if self._failure is not None:
            raise StorageFailed(self._failure.reason)
        batch = self._batch(now)
        try:
            results = [self._carry_out(batch, op) for op in ops]
            changes = batch.finish()
            if not changes.empty():
                self._visible.expect(batch.trimmed)
                self._engine.write(changes)
        except EngineFailed as error:
            self._failure = error
            raise StorageFailed(error.reason) from error
        except BaseException:
            # Nothing was written, but the catalog may be ahead of the engine: read it again.
            self._load(self._engine)
            raise
        self._publish(batch)
        return results

    def _carry_out(self, batch: Batch, op: StoreOp) -> Result:
        try:
            return self._handlers[type(op)](batch, op)
        except TallystickError as error:
            if error.code == "outcome_conflict":
                batch.event("conflict", getattr(op, "gid", ""), error.detail)
            return ops.OpResult(error=error.code, detail=error.detail, field=error.field)

    def _batch(self, now: int) -> Batch:
        return Batch(self._engine, self._catalog, self.settings, now)

    def _publish(self, batch: Batch) -> None:
        """The unit is durable: readers may see it."""
        self._visible.follow(self._catalog, batch.touched, batch.deleted)
        for topic_id, queue in batch.log.touched:
            topic = self._catalog.topics_by_id.get(topic_id)
            if topic is not None:
                self._appended.add((topic.name, queue))
        self._called |= batch.called
        self._events.extend(batch.events)
        self.totals["prepared"] += batch.prepared
        self.totals["committed"] += batch.committed
        self.totals["rolled_back"] += len(batch.outcomes) - batch.committed
        for event in batch.events:
            self.totals[event.kind] += 1

    def drain_appended(self) -> set[tuple[str, int]]:
        appended, self._appended = self._appended, set()
        return appended

    def drain_called(self) -> set[int]:
        called, self._called = self._called, set()
        return called

    def drain_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, topic: str, queue: int, offset: int, max_messages: int, max_bytes: int) -> Slice:
        visible, reader = self._visible, self._reader
        shown = visible.known(topic)
        known = shown.topic
        if not 0 <= queue < known.queues:
            raise NotFound(f"topic {topic!r} has {known.queues} queues, there is no queue {queue}", field="queue")
        start, end = shown.starts[queue], shown.ends[queue]
        if not start <= offset <= end:
            raise topics.outside(known, queue, offset, start, end)
        try:
            piece = reader.slice(shown, queue, offset, max_messages, max_bytes)
        except Exception as error:
            if self._failure is None:
                raise
            raise StorageFailed(self._failure.reason) from error  # the engine is closed, to be opened anew
        start = visible.kept_from(known, queue)
        if offset < start:  # trimmed while we read
            raise topics.outside(known, queue, offset, start, end)
        return piece

    def offsets_at(self, topic: str, timestamp: int) -> list[int]:
        visible, reader = self._visible, self._reader
        shown = visible.known(topic)
        return [reader.offset_at(shown.topic, queue, start, timestamp) for queue, start in enumerate(shown.starts)]

    def page(self, query: TableQuery) -> TablePage:
        return tables.page(self._look(), self._reader, query)

    def splits(self, table: TableName, state: str | None, most: int) -> list[Split]:
        return tables.splits(self._look(), table, state, most)

    def ledger(self, app: str) -> LedgerView | None:
        return ledger.view(self._look(), app)

    def ledgers(self, after: str, limit: int) -> list[LedgerView]:
        return ledger.views(self._look(), after, limit)

    def topics(self) -> list[TopicView]:
        return [shown.view() for shown in self._visible.topics()]

    def topic(self, name: str) -> TopicView | None:
        shown = self._visible.topic(name)
        return None if shown is None else shown.view()

    def _look(self) -> Batch:
        """For seeing, not changing. Not while the store has stopped: the engine may show what is not durable."""
        if self._failure is not None:
            raise StorageFailed(self._failure.reason)
        return self._batch(0)

    def channels(self) -> list[Channel]:
        return list(self._visible.channels)

    def transaction(self, gid: str) -> TransactionView | None:
        return views.transaction(self._look(), gid)

    def scan(
        self, state: str | None, group: str | None, after: str | None, limit: int
    ) -> tuple[list[TransactionView], str | None]:
        return views.scan(self._look(), state, group, after, limit)

    def calls(self, gid: str) -> CallsView | None:
        return call_views.of_transaction(self._look(), gid)

    def call_body(self, gid: str, index: int) -> bytes:
        return call_views.body(self._look(), gid, index)

    def scan_calls(self, state: str | None, after: str | None, limit: int) -> tuple[list[CallView], str | None]:
        return call_views.scan(self._look(), state, after, limit)

    def call_topics(self) -> list[CallTopicView]:
        return sorted(self._look().catalog.call_topics.values(), key=lambda known: known.topic)

    def groups(self, group: str | None = None) -> list[GroupView]:
        return views.groups(self._look(), self._reader, group)

    def lags(self, most: int) -> list[GroupView]:
        return views.lags(self._look(), most)

    def stored_offsets(self, group: str, topic: str) -> GroupView:
        return views.stored_offsets(self._look(), self._reader, group, topic)

    def counts(self) -> Counts:
        return views.counts(self._look())

    # --- failure and end -------------------------------------------------------------------------------------

    def failure(self) -> str | None:
        return self._failure.reason if self._failure else None

    def recover(self) -> bool:
        """Open the engine anew after a failure that may pass; what it then holds is what is durable."""
        if self._failure is None:
            return True
        if not self._failure.may_pass:
            return False
        try:
            self._engine.close()
            self._load(self._open_engine())
        except Exception as error:  # whatever an engine raises: it does not work yet
            self._failure = EngineFailed(f"still failing: {error}", may_pass=True)
            return False
        self._failure = None
        return True

    def close(self) -> None:
        self._engine.close()
