"""The writers that Spark drives: `write` in each task, then `commit` or `abort` once on the driver.

Exactly once rests on two things only: a part belongs to one task attempt, and the driver's commit is one atomic call
under `(application, version)`. Neither `abort` nor what tasks ask before they send is needed for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tallystick.core.access import covers
from tallystick.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    TallystickError,
)
from tallystick.core.ids import new_gid
from tallystick.core.names import check_app
from tallystick.spark.permissions import permissions_at
from tallystick.spark.sink.columns import columns_of
from tallystick.spark.sink.content import Content
from tallystick.spark.sink.ledger import Ledger
from tallystick.spark.sink.options import SinkOptions, parse
from tallystick.spark.sink.parts import Part

_log = logging.getLogger(__name__)
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class PreparedPart(WriterCommitMessage):
    """What a task tells the driver. Without rows there is no part; `skipped` says that the rows were not sent because
    the batch was found committed. `count` and `sum` are the content of the rows, sent or not."""

    app: str
    query: str = ""
    part: str = ""
    count: int = 0
    skipped: bool = False
    sum: int = 0

    @property
    def content(self) -> Content:
        return Content(self.count, self.sum)


class _Sink:
    """What both writers share. Spark makes and copies the writer freely: it holds nothing but what it was told."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._columns = columns_of(schema, options)

    def _prepare(self, batches: Iterator[Any], app: str, query: str, version: int | None) -> PreparedPart:
        """Send the rows as a part. With a version the ledger is asked first: a replay need not send what is there."""
        with self._options.link() as link:
            if version is not None and self._decided(Ledger(link, app, query), version):
                content = sum((self._columns.content(self._columns.shaped(batch)) for batch in batches), Content())
                return PreparedPart(app, query, "", content.rows, True, content.sum)
            # A batch is kept in one store as a whole, and so are its parts; a part's id says where it belongs.
            with Part(link, self._columns, self._options.part_ttl_ms, link.store_of_app(app)) as part:
                for batch in batches:
                    part.add(batch)
        content = part.content
        return PreparedPart(app, query, part.id if content.rows else "", content.rows, False, content.sum)

    def _decided(self, ledger: Ledger, version: int) -> bool:
        try:
            return ledger.decided(version)
        except Forbidden as error:
            if self._options.app:
                raise
            raise Forbidden(
                f"{error.detail}. This application is the query's id. Set option 'txnAppId' to a name that the "
                "token's groups cover",
                field="txnAppId",
            ) from error

    def _decide(self, messages: Sequence[PreparedPart], version: int) -> None:
        app, query = _identity(messages)
        content = sum((message.content for message in messages), Content())
        with self._options.link() as link:
            ledger = Ledger(link, app, query)
            if any(message.skipped for message in messages):
                # Rows that were not sent must not be counted as committed: never commit here.
                self._drop(messages)
            elif ledger.commit(version, {one.part: one.count for one in messages if one.part}, content):
                return
            self._require_replay(ledger, app, version, content)

    def _require_replay(self, ledger: Ledger, app: str, version: int, content: Content) -> None:
        """The batch was decided before, and nothing of this attempt is sent. That is right if it holds the same rows,
        and would otherwise lose some."""
        how = ledger.require_same(version, content, drops=not self._options.fail_on_different_replay)
        if how:
            _log.warning(
                "batch %d of txnAppId %s was committed before with other rows (%s). Option failOnDifferentReplay is "
                "false, so these rows are dropped",
                *(version, app, how),
            )
        else:
            _log.warning("batch %d of txnAppId %s was committed before; nothing was sent again", version, app)

    def _drop(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop parts that nobody has committed. Only a courtesy: Spark does not name every part, so the broker lets
        them expire in any case, and it never drops what is committed."""
        parts = [message.part for message in messages if isinstance(message, PreparedPart) and message.part]
        try:
            with self._options.impatient_link() as link:
                for part in parts:
                    link.delete("parts", part)
        except TallystickError as error:
            _log.warning("parts were left to expire: %s", error)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("tallystick")`. Tasks and driver get copies of this very object, its application id included."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest("a topic cannot be overwritten: use .mode('append')", field="mode")
        super().__init__(schema, parse(options, streaming=False))
        self._app = self._options.app or new_gid()

    def check_access(self) -> None:
        """Refuse on the driver, before any row is sent, what the broker would refuse at the commit: an application
        that was drawn at random, under a token that is limited to groups."""
        if self._options.app:
            return
        with self._options.impatient_link() as link:
            try:
                permissions = permissions_at(link)
            except TallystickError as error:
                if not error.retryable:
                    raise
                return  # the tasks wait for the broker
        groups = permissions.groups_for("produce")
        if not groups or covers(groups, self._app):  # without groups access control is off, or the parts are refused
            return
        raise Forbidden(
            f"option 'txnAppId': {permissions.name!r} may not produce under a random application, which a batch write "
            f"without txnAppId uses (its groups: {', '.join(groups)}). Set txnAppId and txnVersion, with a "
            "txnAppId that these groups cover",
            field="txnAppId",
        )

    def write(self, iterator: Iterator[Any]) -> PreparedPart:
        # In foreachBatch there is a query, whose id tells one user of an application id from another.
        return self._prepare(iterator, self._app, _property(_QUERY), self._options.version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        told = _all_told(messages)
        self._decide(told, self._options.version or 0)
        if not self._options.app:
            self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._drop(messages)

    def _forget(self) -> None:
        """The id was drawn for this write alone; a ledger that kept it would grow with every write."""
        try:
            with self._options.impatient_link() as link:
                Ledger(link, self._app, "").forget()
        except TallystickError as error:
            _log.warning("the ledger keeps an application that is not used again: %s", error)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("tallystick")`. The driver's writer is made anew for every batch and knows nothing of the
    tasks': the query's id comes with their messages."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest(
                "a topic cannot be overwritten, so outputMode('complete') has no meaning here: use 'append' (with a "
                "watermark, for an aggregation), or foreachBatch with outputMode('update')",
                field="outputMode",
            )
        super().__init__(schema, parse(options, streaming=True))

    def write(self, iterator: Iterator[Any]) -> PreparedPart:
        query, batch = _property(_QUERY), _property(_BATCH)
        app = self._options.app or query
        if not app:
            raise InvalidRequest("this Spark does not tell its query's id; give option 'txnAppId'", field="txnAppId")
        return self._prepare(iterator, app, query, int(batch) if batch else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._decide(_all_told(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._drop(messages)


def _property(name: str) -> str:
    """What the driver told its tasks; empty where there is no task, or nothing was told."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""


def _all_told(messages: Sequence[WriterCommitMessage | None]) -> list[PreparedPart]:
    """What all tasks told, of which there is at least one: Spark runs one without rows if a batch has no partitions."""
    told = [message for message in messages if isinstance(message, PreparedPart)]
    if not told or len(told) < len(messages):
        raise Conflict(f"{len(told)} of {len(messages)} tasks told what they sent; nothing was committed")
    return told


def _identity(messages: Sequence[PreparedPart]) -> tuple[str, str]:
    """The application and the query, which all tasks of a batch have in common."""
    found = {(message.app, message.query) for message in messages}
    if len(found) > 1:
        raise Conflict(f"the tasks of one batch name several applications: {sorted(found)}; nothing was committed")
    (app, query) = found.pop()
    return check_app(app, "txnAppId"), query
