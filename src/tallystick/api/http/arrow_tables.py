"""The store's tables as Arrow, a page at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

from tallystick.api.http.arrow import headers_array
from tallystick.columnar.arrow import END_OF_STREAM, pyarrow
from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import TableName

# Name and kind of each column; a question mark where it may be null.
_COLUMNS: dict[TableName, str] = {
    "transactions": "gid text, state text, group text?, messages int32, created_at time, resolved_at time?, "
    "resolved_by text?, checks int32, next_check_at time?, last_error text?, check_via text?, check_target text?, "
    "source text?",
    "half": "gid text, sequence int32, state text, group text, topic text, key text?, value binary, headers map?, "
    "tag text?, deliver_at time?, created_at time, check_via text?, check_target text?, source text?",
    "op": "sequence int64, index int32, at time, gid text, outcome text, by text",
    "offsets": "group text, topic text, queue int32, offset int64, start int64, end int64, lag int64, leased int32",
    "delayed": "gid text, sequence int32, topic text, deliver_at time",
    "calls": "gid text, index int32, branch text, url text, protocol text, state text, attempts int32, next_at time?, "
    "last_error text?, finished_at time?, created_at time, size int32",
    "audit": "at time, who text, kind text, source text, action text, subject text",
}


@cache
def schema(table: TableName) -> Any:
    pa = pyarrow()
    kinds = {
        "text": pa.string(),
        "binary": pa.binary(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "time": pa.timestamp("ms", tz="UTC"),
        "map": pa.map_(pa.string(), pa.string()),
    }
    columns = [column.split() for column in _COLUMNS[table].split(", ")]
    return pa.schema([pa.field(name, kinds[kind.rstrip("?")], kind.endswith("?")) for name, kind in columns])


def chosen(table: TableName, columns: str | None) -> Any:
    """The schema of the columns that were asked for, with commas between them; of all by default."""
    whole = schema(table)
    if columns is None:
        return whole
    names = columns.split(",")
    for name in names:
        if name not in whole.names or names.count(name) > 1:
            raise InvalidRequest(
                f"columns: {name[:80]!r} is given twice, or no column of {table}; there are {', '.join(whole.names)}",
                field="columns",
            )
    return pyarrow().schema([whole.field(name) for name in names])


def stream(kinds: Any, columns: dict[str, list[Any]]) -> bytes:
    """The columns of a schema, of one page, as an Arrow IPC stream."""
    batch = pyarrow().record_batch([_array(field.type, columns[field.name]) for field in kinds], schema=kinds)
    return b"".join((kinds.serialize().to_pybytes(), batch.serialize().to_pybytes(), END_OF_STREAM))


def _array(kind: Any, rows: list[Any]) -> Any:
    pa = pyarrow()
    if pa.types.is_timestamp(kind):
        return pa.array(rows, pa.int64()).cast(kind)
    return headers_array(rows) if pa.types.is_map(kind) else pa.array(rows, kind)
