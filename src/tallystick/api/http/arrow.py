"""Messages of a topic as Arrow: the columns, and record batches of what is stored, whichever form it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain
from typing import Any, TypeVar

from tallystick.columnar.arrow import pyarrow
from tallystick.columnar.body import Encoded
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import Chunk, StoredColumns

T = TypeVar("T")
_COUNTED = 65_536


@cache
def schema() -> Any:
    pa = pyarrow()
    return pa.schema(
        [
            pa.field("topic", pa.string(), nullable=False),
            pa.field("queue", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("key", pa.string()),
            pa.field("value", pa.binary(), nullable=False),
            pa.field("headers", pa.map_(pa.string(), pa.string())),
            pa.field("tag", pa.string()),
            pa.field("gid", pa.string()),
            pa.field("sequence", pa.int32(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("born_at", pa.timestamp("ms", tz="UTC"), nullable=False),
        ]
    )


@cache
def schema_of(names: tuple[str, ...]) -> Any:
    """The schema with these columns only, in their usual order."""
    return pyarrow().schema([field for field in schema() if field.name in names])


def read_columns(text: str | None) -> tuple[str, ...]:
    """The columns that a request names; all of them if it names none."""
    known = tuple(schema().names)
    names = known if text is None else tuple(text.split(","))
    for name in names:
        if name not in known:
            raise InvalidRequest(f"columns: {name[:40]!r} is not one of {', '.join(known)}", field="columns")
    return names


def batch_of_chunks(
    chunks: list[Chunk], topic: str, queue: int, first: int, end: int, names: tuple[str, ...] | None = None
) -> Any:
    """The rows of consecutive chunks with offsets in [first, end), as one batch: few large arrays cost much less than
    many small ones."""
    pa = pyarrow()
    rows = sum(map(len, chunks))
    base = chunks[0].base
    makers = _constant(topic, queue, base, rows) | {
        "key": lambda: pa.array(_chained(chunk.keys for chunk in chunks), pa.string()),
        "value": lambda: pa.array(_chained(chunk.values for chunk in chunks), pa.binary()),
        "headers": lambda: headers_array(_chained(chunk.headers for chunk in chunks)),
        "tag": lambda: pa.array(_chained(chunk.tags for chunk in chunks), pa.string()),
        "gid": lambda: pa.array([gid or None for gid in _chained(chunk.gids for chunk in chunks)], pa.string()),
        "sequence": lambda: pa.array(_chained(chunk.sequences for chunk in chunks), pa.int32()),
        "timestamp": lambda: _times(_chained([chunk.stored_at] * len(chunk) for chunk in chunks)),
        "born_at": lambda: _times(_chained(chunk.born_at for chunk in chunks)),
    }
    return _batch(makers, names, base, rows, first, end)


def batch_of_columns(
    stored: StoredColumns, topic: str, queue: int, first: int, end: int, names: tuple[str, ...] | None = None
) -> Any:
    """The same of what is stored in columns. These are handed on as they lie in the stored bytes, once those have been
    verified; only what is the same for all rows, or counted, is made."""
    pa, pc = pyarrow(), pyarrow().compute
    where = f"{topic}/{queue}, from offset {stored.base}"
    head = Encoded(stored.columns, where)
    columns, rows = head.columns, head.rows
    makers = _constant(topic, queue, stored.base, rows) | {
        **{name: partial(_column, columns, name, rows) for name in ("key", "headers", "tag")},
        "value": lambda: Encoded(stored.values, where).columns["value"],
        "gid": lambda: pa.repeat(pa.scalar(stored.gid or None, pa.string()), rows),
        "sequence": lambda: pc.add(head.sequences(columns), pa.scalar(stored.first, pa.int32())),
        "timestamp": lambda: pa.repeat(_time(stored.stored_at), rows),
        "born_at": lambda: pa.repeat(_time(stored.born_at), rows),
    }
    return _batch(makers, names, stored.base, rows, first, end)


def _column(columns: dict[str, Any], name: str, rows: int) -> Any:
    return columns[name] if name in columns else pyarrow().nulls(rows, schema().field(name).type)


def _constant(topic: str, queue: int, base: int, rows: int) -> dict[str, Callable[[], Any]]:
    pa = pyarrow()
    return {
        "topic": lambda: pa.repeat(topic, rows),
        "queue": lambda: pa.repeat(pa.scalar(queue, pa.int32()), rows),
        "offset": lambda: counted(base, rows),
    }


def _batch(
    makers: dict[str, Callable[[], Any]], names: tuple[str, ...] | None, base: int, rows: int, first: int, end: int
) -> Any:
    """Rows that begin at `base`, cut down to the offsets in [first, end)."""
    wanted = schema() if names is None else schema_of(names)
    skip = max(0, first - base)
    batch = pyarrow().record_batch([makers[name]() for name in wanted.names], schema=wanted)
    return batch.slice(skip, max(0, min(rows, end - base) - skip))


@cache
def _numbers() -> Any:
    return pyarrow().array(range(_COUNTED), pyarrow().int64())


def counted(first: int, count: int) -> Any:
    """`count` numbers from `first` on."""
    pa = pyarrow()
    if count > _COUNTED:
        return pa.array(range(first, first + count), pa.int64())
    return pa.compute.add(_numbers().slice(0, count), first)


def _chained(columns: Iterable[list[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


def _times(milliseconds: list[int]) -> Any:
    # As numbers first: Arrow's own way from Python numbers to times takes seven times as long.
    return pyarrow().array(milliseconds, pyarrow().int64()).cast(schema().field("timestamp").type)


def _time(milliseconds: int) -> Any:
    return pyarrow().scalar(milliseconds, pyarrow().int64()).cast(schema().field("timestamp").type)


def headers_array(headers: list[dict[str, str] | None]) -> Any:
    kind = schema().field("headers").type
    if not any(headers):
        return pyarrow().nulls(len(headers), kind)
    return pyarrow().array([None if one is None else list(one.items()) for one in headers], kind)
