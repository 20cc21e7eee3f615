"""What a store shows: the views of the protocol, each one look at what is durable."""

from __future__ import annotations

from tallystick.core.calls import CallsView, CallTopicView, CallView
from tallystick.core.errors import NotFound
from tallystick.core.message import Slice, Welcome
from tallystick.core.token_records import TokenRecord
from tallystick.core.wire import AuditLine, GroupView, LedgerView, Split, TableName, TopicView, TransactionView
from tallystick.store.kv import audit, call_views, ledger, tables, topics, views
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Catalog
from tallystick.store.kv.engine import Engine, EngineFailed
from tallystick.store.kv.reader import QueueReader
from tallystick.store.kv.visible import Visible
from tallystick.store.protocol import (
    AuditQuery,
    Channel,
    Counts,
    StoreSettings,
    TablePage,
    TableQuery,
)


class Looks:
    """An engine with what is kept at hand of it, to look at."""

    def __init__(self, engine: Engine, settings: StoreSettings) -> None:
        self.settings = settings
        self._failure: EngineFailed | None = None
        self._load(engine)

    def _load(self, engine: Engine) -> None:
        self._engine = engine
        self._catalog = Catalog(engine)
        self._visible = Visible(self._catalog)
        self._reader = QueueReader(engine, self._visible)

    def _look(self) -> Batch:
        """For seeing, not changing. Not while the store has stopped: the engine may show what is not durable."""
        if self._failure is not None:
            raise self._failure.told()
        return Batch(self._engine, self._catalog, self.settings, 0)

    def delayed_due(self, now: int) -> bool:
        return now >= self._catalog.first_delayed

    # --- topics and queues, for any thread -----------------------------------------------------------------------

    def read(
        self, topic: str, queue: int, offset: int, max_messages: int, max_bytes: int, columns: Welcome = "none"
    ) -> Slice:
        self._refuse_while_away()
        visible, reader = self._visible, self._reader
        shown = visible.known(topic)
        known = shown.topic
        if not 0 <= queue < known.queues:
            raise NotFound(f"topic {topic!r} has {known.queues} queues, there is no queue {queue}", field="queue")
        start, end = shown.starts[queue], shown.ends[queue]
        if not start <= offset <= end:
            raise topics.outside(known, queue, offset, start, end)
        try:
            piece = reader.slice(shown, queue, offset, max_messages, max_bytes, columns)
        except Exception as error:
            if self._failure is None or self._failure.full:
                raise
            raise self._failure.told() from error  # the engine is closed, to be opened anew
        start = visible.kept_from(known, queue)
        if offset < start:  # trimmed while we read
            raise topics.outside(known, queue, offset, start, end)
        return piece

    def offsets_at(self, topic: str, timestamp: int) -> list[int]:
        self._refuse_while_away()
        visible, reader = self._visible, self._reader
        shown = visible.known(topic)
        return [reader.offset_at(shown.topic, queue, start, timestamp) for queue, start in enumerate(shown.starts)]

    def _refuse_while_away(self) -> None:
        """A server that did not answer the writer is not asked by each reader as well, who would wait for as long. A
        disk that takes no more writes, or a server without room, can still be read."""
        if self._failure is not None and self._engine.remote and not self._failure.full:
            raise self._failure.told()

    def topics(self) -> list[TopicView]:
        return [shown.view() for shown in self._visible.topics()]

    def topic(self, name: str) -> TopicView | None:
        shown = self._visible.topic(name)
        return None if shown is None else shown.view()

    def channels(self) -> list[Channel]:
        return list(self._visible.channels)

    def tokens(self) -> list[TokenRecord]:
        return self._visible.tokens

    # --- tables --------------------------------------------------------------------------------------------------

    def page(self, query: TableQuery) -> TablePage:
        return tables.page(self._look(), self._reader, query)

    def splits(self, table: TableName, state: str | None, most: int) -> list[Split]:
        return tables.splits(self._look(), table, state, most)

    def ledger(self, app: str) -> LedgerView | None:
        return ledger.view(self._look(), app)

    def ledgers(self, after: str, limit: int) -> list[LedgerView]:
        return ledger.views(self._look(), after, limit)

    def audit(self, query: AuditQuery) -> tuple[list[AuditLine], str | None]:
        return audit.newest(self._look(), query)

    # --- transactions and calls ----------------------------------------------------------------------------------

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

    # --- groups --------------------------------------------------------------------------------------------------

    def groups(self, group: str | None = None) -> list[GroupView]:
        return views.groups(self._look(), self._reader, group)

    def lags(self, most: int) -> list[GroupView]:
        return views.lags(self._look(), most)

    def stored_offsets(self, group: str, topic: str) -> GroupView:
        return views.stored_offsets(self._look(), self._reader, group, topic)

    # --- health --------------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        return views.counts(self._look())

    @property
    def remote(self) -> bool:
        return self._engine.remote

    def failure(self) -> str | None:
        return self._failure.reason if self._failure else None

    def round_trips(self) -> int:
        return 0
