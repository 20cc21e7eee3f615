"""Rows that are over a limit of the broker, refused before they are sent, and named: a batch may have millions."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from tallystick.core.errors import InvalidRequest, TooLarge
from tallystick.core.names import LONGEST_HEADER_NAME, LONGEST_HEADER_VALUE, LONGEST_KEY, LONGEST_TAG, MOST_HEADERS

_SHOWN_KEY, _SHOWN_VALUE = 80, 40


def check_rows(batch: Any, message_bytes: int) -> None:
    """Refuse rows in the form that the broker takes; `message_bytes` is its own limit for a value."""
    names = batch.schema.names
    sizes = pc.binary_length(batch.column("value"))
    _check(batch, "value", sizes, message_bytes, "bytes, the broker's limit is {limit} (max_message_bytes)")
    for name, longest in (("key", LONGEST_KEY), ("tag", LONGEST_TAG)):
        if name in names:
            _check(batch, name, pc.utf8_length(batch.column(name)), longest, "characters, the limit is {limit}")
    if "headers" in names:
        _check_headers(batch)


def _check(batch: Any, column: str, sizes: Any, limit: int, words: str) -> None:
    if (pc.max(sizes).as_py() or 0) <= limit:
        return
    at = pc.index(pc.fill_null(pc.greater(sizes, limit), False), True).as_py()
    raise TooLarge(
        f"column {column!r}: a row with {_named(batch, at)} has {sizes[at].as_py()} {words.format(limit=limit)}",
        field=column,
    )


def _check_headers(batch: Any) -> None:
    column = batch.column("headers")
    ends = column.offsets
    _check(batch, "headers", pc.subtract(ends[1:], ends[:-1]), MOST_HEADERS, "headers, the limit is {limit}")
    # Of all rows that share the memory, this batch's or not: which row it is, is looked for only if one is too long.
    if _longest(column.keys) <= LONGEST_HEADER_NAME and _longest(column.items) <= LONGEST_HEADER_VALUE:
        return
    for at, pairs in enumerate(column.to_pylist()):
        for name, value in pairs or ():
            if len(name) > LONGEST_HEADER_NAME or len(value) > LONGEST_HEADER_VALUE:
                raise InvalidRequest(
                    f"column 'headers': a row with {_named(batch, at)} has a header {name[:_SHOWN_KEY]!r} with a name "
                    f"of {len(name)} characters and a text of {len(value)}; the limits are {LONGEST_HEADER_NAME} and "
                    f"{LONGEST_HEADER_VALUE}",
                    field="headers",
                )


def _longest(texts: Any) -> int:
    return int(pc.max(pc.utf8_length(texts)).as_py() or 0)


def _named(batch: Any, at: int) -> str:
    """By its key, or else by what its value begins with."""
    key = batch.column("key")[at].as_py() if "key" in batch.schema.names else None
    if key is not None:
        return f"key {key[:_SHOWN_KEY]!r}" + ("..." if len(key) > _SHOWN_KEY else "")
    value = batch.column("value")[at].as_py()
    return f"value {value[:_SHOWN_VALUE]!r}" + ("..." if len(value) > _SHOWN_VALUE else "")
