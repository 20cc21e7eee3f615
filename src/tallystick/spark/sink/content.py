"""What a write holds, to know it again: the number of its rows, and a digest of what is sent of them.

Spark keeps the rows of a batch over a restart, but neither their order nor how they are divided into tasks. So each row
is hashed for itself and the digest is the sum of the hashes: tasks add up theirs, the driver those of the tasks.

The hash of a row is XXH3 of its value, with a seed made of all its other fields: the value, which is most of the row,
is hashed where it lies. It tells accidents, not forgeries.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

# Names how the digest is made. Digests made in another way say nothing about these: change it with anything below.
_SCHEME = "rows2"
_OUR_SCHEMES = ("rows1:", "rows2:")  # each beside the number of rows
_BYTES = 16
_ALL = 2 ** (8 * _BYTES)
_TEXTS = ("topic", "key", "tag")
_SEED = pa.uint64()
_NONE = pa.scalar(0, _SEED)
_MIX = pa.scalar(0x9E3779B97F4A7C15, _SEED)  # odd, so that nothing is lost by it: to tell a column from the next
_NULL = pa.scalar(0xD6E8FEB86659FD93, _SEED)  # to tell what is null from what is empty


class Content(Struct, frozen=True):
    """Rows that are written, or would have been."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, (self.sum + other.sum) % _ALL)

    @property
    def digest(self) -> str:
        return f"{_SCHEME}:{self.sum:0{2 * _BYTES}x}"

    def comparable(self, digest: str) -> bool:
        """Whether a digest was made in the same way as this one, so that it tells equal rows from others."""
        return digest.startswith(f"{_SCHEME}:")

    def differs(self, rows: int, digest: str) -> str:
        """How these rows differ from what is known of others, or an empty string. A digest of somebody else, or none,
        tells nothing; beside one of an earlier release only the number of rows can be compared."""
        if not digest.startswith(_OUR_SCHEMES):
            return ""
        if self.rows != rows:
            return f"{rows} rows then, {self.rows} now"
        same = self.digest == digest or not self.comparable(digest)
        return "" if same else f"{rows} rows both times, but not the same"


def content_of(batch: Any) -> Content:
    """The content of rows in the form that the broker takes."""
    if not batch.num_rows:
        return Content()
    value = batch.column("value")
    hashes = map(xxh3_128_intdigest, _pieces(value), _numbers(_told_null(value, _seeds(batch))))
    return Content(batch.num_rows, sum(hashes) % _ALL)


# --- the fields beside the value --------------------------------------------------------------------------------


def _seeds(batch: Any) -> Any:
    """One number for each row, made of all its small fields. A column that is not there is as good as one without
    values, as it is to the broker."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    seeds = pa.repeat(_NONE, batch.num_rows)
    for name in _TEXTS:
        seeds = _mixed(seeds, _hashed(columns[name]) if name in columns else _NONE)
    seeds = _mixed(seeds, _times(columns["deliver_at"]) if "deliver_at" in columns else _NONE)
    return _mixed(seeds, _headers(columns["headers"]) if "headers" in columns else _NONE)


def _mixed(seeds: Any, more: Any) -> Any:
    return pc.add(pc.multiply(seeds, _MIX), more)


def _told_null(column: Any, seeds: Any) -> Any:
    return pc.add(seeds, pc.multiply(column.is_null().cast(_SEED), _NULL)) if column.null_count else seeds


def _hashed(column: Any) -> Any:
    """Each text once: topics, tags and often keys are the same in many rows."""
    found = column.dictionary_encode()
    hashes = pa.array(map(xxh3_64_intdigest, _pieces(found.dictionary)), _SEED)
    return pc.fill_null(hashes.take(found.indices), _NONE)


def _times(column: Any) -> Any:
    """No time is the same as a time long ago: at once."""
    return pc.fill_null(column.cast(pa.int64()).cast(_SEED, safe=False), _NONE)


def _headers(column: Any) -> Any:
    """A sum for each row: a map has no order of its own. No headers are the same as an empty set of them."""
    ends = _offsets(column)
    first, count = ends[0], ends[-1] - ends[0]
    names, values = column.keys.slice(first, count), column.items.slice(first, count)
    entries = list(map(xxh3_64_intdigest, _pieces(values), _numbers(_told_null(values, _hashed(names)))))
    sums = (sum(entries[begin - first : end - first]) % 2**64 for begin, end in pairwise(ends))
    return pc.if_else(column.is_valid(), pa.array(sums, _SEED), _NONE)


# --- columns as Python sees them, without a copy ----------------------------------------------------------------


def _pieces(column: Any) -> Iterator[memoryview]:
    """The bytes of each text of a column, where they lie."""
    if column.null_count:
        column = pc.fill_null(column, b"" if column.type == pa.binary() else "")
    content = memoryview(column.buffers()[2] or b"")
    ends = _offsets(column)
    return map(content.__getitem__, map(slice, ends, ends[1:]))


def _offsets(column: Any) -> list[int]:
    """Where each item of a column of texts or maps begins, and where the last one ends."""
    if not len(column):
        return [0]
    first, count = 4 * column.offset, 4 * (len(column) + 1)
    return memoryview(column.buffers()[1])[first : first + count].cast("i").tolist()


def _numbers(column: Any) -> list[int]:
    first, count = 8 * column.offset, 8 * len(column)
    return memoryview(column.buffers()[1])[first : first + count].cast("Q").tolist() if count else []
