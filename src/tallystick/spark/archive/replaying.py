"""A task's work in a replay: messages of one queue become rows for the sink, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from tallystick.core.names import MOST_HEADERS
from tallystick.spark.archive.layout import SCHEMA, Archive
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.reading import read_messages
from tallystick.spark.source.settings import parse_settings

SINK_SCHEMA = "key string, value binary, headers map<string,string>, tag string"
SINK_COLUMNS = pa.schema([SCHEMA.field(name) for name in ("key", "value", "headers", "tag")])
ID, FROM = "replayed-id", "replayed-from"


class Origin(Struct, frozen=True):
    """Where messages come from: an archive, or the log of a broker; `store` is the one that first had them."""

    store: str
    archive: str
    url: str
    patience_seconds: float

    def read(self, piece: Range) -> Iterator[pa.RecordBatch]:
        if self.archive:
            return Archive(self.archive).read(piece.topic, piece.queue, piece.start, piece.end)
        options = {"url": self.url, "topic": piece.topic, "retryTimeout": f"{self.patience_seconds:g}s"}
        return read_messages(parse_settings(options, streaming=False), piece)


class Choice(Struct, frozen=True):
    """Which messages, and whether they are told where they came from. Without keys or tags: all."""

    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    marked: bool = True

    def rows(self, origin: Origin, piece: Range) -> Iterator[pa.RecordBatch]:
        for batch in origin.read(piece):
            chosen = self._filtered(batch)
            if chosen.num_rows:
                yield _for_sink(_marked(chosen, origin.store) if self.marked else chosen)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted:
                batch = batch.filter(pc.is_in(batch.column(column), pa.array(wanted, pa.string())))
        return batch


def _for_sink(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(name) for name in SINK_COLUMNS.names], schema=SINK_COLUMNS)


def _marked(batch: pa.RecordBatch, store: str) -> pa.RecordBatch:
    """The batch with two headers more: the id that consumers knew a message by, and its topic, queue and offset."""
    places = _joined("/", batch.column("topic"), batch.column("queue"), batch.column("offset"))
    in_transaction = _joined("/", batch.column("gid"), batch.column("sequence"))
    ids = pc.coalesce(in_transaction, _joined("/", pa.repeat(store, batch.num_rows), places))
    headers = batch.column("headers")
    if headers.null_count == batch.num_rows:
        marked = _only(ids, places, headers.type)
    else:
        added = zip(headers.to_pylist(), ids.to_pylist(), places.to_pylist(), strict=True)
        marked = pa.array([_with(known, one, place) for known, one, place in added], headers.type)
    return batch.set_column(batch.schema.get_field_index("headers"), SCHEMA.field("headers"), marked)


def _joined(separator: str, *columns: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*(column.cast(pa.string()) for column in columns), separator)


def _only(ids: pa.Array, places: pa.Array, kind: Any) -> pa.Array:
    """Maps of these two headers alone, made column by column."""
    rows = len(ids)
    pairs = pa.Table.from_arrays([ids, places], names=["id", "place"])
    items = pa.concat_arrays([pairs.column("id").combine_chunks(), pairs.column("place").combine_chunks()])
    order = [place for row in range(rows) for place in (row, rows + row)]
    names = pa.array([ID, FROM] * rows, pa.string())
    return pa.MapArray.from_arrays(
        pa.array(range(0, 2 * rows + 1, 2), pa.int32()), names, items.take(pa.array(order))
    ).cast(kind)


def _with(headers: list[tuple[str, str]] | None, message_id: str, place: str) -> list[tuple[str, str]]:
    known = dict(headers or [])
    marked = {**known, ID: message_id, FROM: place}
    # A message that has as many as there may be already stays as it is.
    return list((marked if len(marked) <= MOST_HEADERS else known).items())
