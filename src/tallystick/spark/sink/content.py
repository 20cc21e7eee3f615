"""What a write holds, to know it again: the number of its rows, and a digest of what is sent of them.

Spark keeps the rows of a batch over a restart, but neither their order nor how they are divided into tasks. So each row
is hashed for itself and the digest is the sum of the hashes: tasks add up theirs, the driver those of the tasks.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

# Names how the digest is made. Digests made in another way say nothing about these: change it with anything below.
_SCHEME = "rows1"
_BYTES = 16
_ALL = 2 ** (8 * _BYTES)
_TEXTS = ("topic", "key", "tag", "value")
_NONE = b"-1"  # the length of what is null, or of what has no column


class Content(Struct, frozen=True):
    """Rows that are written, or would have been."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, (self.sum + other.sum) % _ALL)

    @property
    def digest(self) -> str:
        return f"{_SCHEME}:{self.sum:0{2 * _BYTES}x}"

    def differs(self, rows: int, digest: str) -> str:
        """How these rows differ from what is known of others, or an empty string. A digest that was not made as ours
        are, or was not kept, tells nothing."""
        if not digest.startswith(f"{_SCHEME}:"):
            return ""
        if self.rows != rows:
            return f"{rows} rows then, {self.rows} now"
        return "" if self.digest == digest else f"{rows} rows both times, but not the same"


def content_of(batch: Any) -> Content:
    """The content of rows in the form that the broker takes."""
    hashed = [hashlib.sha256(row).digest()[:_BYTES] for row in _encoded(batch).to_pylist()]
    return Content(batch.num_rows, sum(int.from_bytes(one, "little") for one in hashed) % _ALL)


def _encoded(batch: Any) -> Any:
    """Each row as bytes that no other row has: the lengths of its fields, then the fields. A column that is not there
    is as good as one without values, as it is to the broker."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    lengths = [_length(columns[name]) if name in columns else _NONE for name in _TEXTS]
    texts = [pc.fill_null(columns[name].cast(pa.binary()), b"") if name in columns else b"" for name in _TEXTS]
    times = _times(columns["deliver_at"]) if "deliver_at" in columns else b"0"
    headers = _headers(columns["headers"]) if "headers" in columns else b""
    return pc.binary_join_element_wise(*lengths, times, _length(headers), headers, *texts, b",")


def _length(column: Any) -> Any:
    if isinstance(column, bytes):
        return str(len(column)).encode()
    return _decimal(pc.fill_null(pc.binary_length(column), -1))


def _times(column: Any) -> Any:
    """No time is the same as a time long ago: at once."""
    return _decimal(pc.fill_null(column.cast(pa.int64()), 0))


def _headers(column: Any) -> Any:
    """In the order of their names: a map has none of its own. No headers are the same as an empty set of them."""
    if column.null_count == len(column):
        return b""
    told = [json.dumps(sorted(pairs)).encode() if pairs else b"" for pairs in column.to_pylist()]
    return pa.array(told, pa.binary())


def _decimal(numbers: Any) -> Any:
    return numbers.cast(pa.string()).cast(pa.binary())
