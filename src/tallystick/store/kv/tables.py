"""The store's own state as tables, page by page: transactions, half messages, outcomes, consumer groups' offsets.

Pages are read beside the writer, straight from the engine: nothing here may touch what the writer keeps in memory.
The history is read in order of gid, each transaction once. Pending transactions are found through the indexes of
checks, so that they cost nothing for the history; one that is checked meanwhile moves in there and may be seen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from tallystick.core.calls import CallView
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import OutgoingMessage, dated
from tallystick.core.transaction import CheckState, Prepared, Record, Resolved
from tallystick.core.wire import Split, TableName
from tallystick.store.kv import call_views, keys, views
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.call_records import decode_calls, decode_state
from tallystick.store.kv.delayed import decode_delayed
from tallystick.store.kv.engine import Area
from tallystick.store.kv.reader import QueueReader
from tallystick.store.kv.tombstones import decode_outcomes
from tallystick.store.protocol import TablePage, TableQuery

PAGE_BYTES = 8 * 1024 * 1024
EXAMINED_PER_PAGE = 50_000  # a page that filters much away ends early

COLUMNS: dict[TableName, tuple[str, ...]] = {
    "transactions": (
        *("gid", "state", "group", "messages", "created_at", "resolved_at", "resolved_by", "checks"),
        *("next_check_at", "last_error", "check_via", "check_target", "source"),
    ),
    "half": (
        *("gid", "sequence", "state", "group", "topic", "key", "value", "headers", "tag", "deliver_at"),
        *("created_at", "check_via", "check_target", "source"),
    ),
    "op": ("sequence", "index", "at", "gid", "outcome", "by"),
    "offsets": ("group", "topic", "queue", "offset", "start", "end", "lag", "leased"),
    "delayed": ("gid", "sequence", "topic", "deliver_at"),
    "calls": (
        *("gid", "index", "branch", "url", "protocol", "state", "attempts", "next_at", "last_error"),
        *("finished_at", "created_at", "size"),
    ),
}
_PENDING = ("prepared", "parked", "pending")
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_check = msgspec.msgpack.Decoder(CheckState).decode

Row = tuple[Any, ...]


class _Span(NamedTuple):
    """A range of keys of one kind."""

    area: Area
    kind: keys.Kind
    low: bytes
    high: bytes


def _spans(batch: Batch, table: TableName, state: str | None) -> list[_Span]:
    """Where a table lies, in the order in which it is read."""
    if table == "op":
        return [_Span("index", keys.OUTCOMES, *keys.OUTCOMES.since(batch.counters.first_outcome))]
    if table in ("transactions", "half") and (table == "half" or state in _PENDING):
        # The line for checks first: what is parked while we read is then met again, not missed.
        return [_whole(keys.DUE), _whole(keys.PARKED)]
    if table == "transactions":
        return [_Span("tx", keys.TRANSACTION, *keys.TRANSACTION.all)]
    if table == "calls" and state == "waiting":
        return [_whole(keys.DUE_CALL), _whole(keys.LEASED_CALL)]
    if table == "calls":
        return [_whole(keys.PARKED_CALL if state == "parked" else keys.CALLS_STATE)]
    return [_whole(keys.DELAYED)]


def _whole(kind: keys.Kind) -> _Span:
    return _Span("index", kind, *kind.all)


def page(batch: Batch, reader: QueueReader, query: TableQuery) -> TablePage:
    names = COLUMNS[query.table]
    rows: list[Row] = []
    place: str | None = None
    if query.table == "offsets":
        rows = list(_offsets(batch, reader, query.group))
    else:
        size = 0
        for examined, (token, kind, key, value) in enumerate(_entries(batch, query)):
            for row, weight in _MAKERS[query.table](batch, kind, key, value, query):
                rows.append(row)
                size += weight
            if len(rows) >= query.limit or size >= PAGE_BYTES or examined >= EXAMINED_PER_PAGE:
                place = token
                break
    return TablePage({name: [row[at] for row in rows] for at, name in enumerate(names)}, place)


def _entries(batch: Batch, query: TableQuery) -> Iterator[tuple[str, keys.Kind, bytes, bytes]]:
    """(token, kind, key, value) of the keys behind `after`, up to and with `before`."""
    spans = _spans(batch, query.table, query.state)
    first, start = _read_token(spans, query.after, "after") if query.after else (0, None)
    last, stop = _read_token(spans, query.before, "before") if query.before else (len(spans) - 1, None)
    for number in range(first, last + 1):
        area, kind, low, high = spans[number]
        begin = max(low, keys.behind(start)) if start is not None and number == first else low
        end = min(high, keys.behind(stop)) if stop is not None and number == last else high
        for key, value in batch.engine.scan(area, begin, end):
            yield f"{number}.{key.hex()}", kind, key, value


def _read_token(spans: list[_Span], token: str, field: str) -> tuple[int, bytes]:
    number, _, place = token.partition(".")
    try:
        kind = spans[int(number)].kind if number in ("0", "1") else None
        key = bytes.fromhex(place)
    except (ValueError, IndexError):
        kind, key = None, b""
    if kind is None or not kind.holds(key):  # not by the span: the beginning of a table may have expired meanwhile
        raise InvalidRequest(f"{field}: {token[:80]!r} is no place in this table", field=field)
    return int(number), key


# --- rows --------------------------------------------------------------------------------------------------------

_Rows = Iterator[tuple[Row, int]]


def _transaction_rows(batch: Batch, kind: keys.Kind, key: bytes, value: bytes, query: TableQuery) -> _Rows:
    gid, record = _record(batch, kind, key, value)
    if record is None or not _wanted(record, query):
        return
    if isinstance(record, Resolved):
        if query.state in (None, record.outcome):
            yield _resolved_row(gid, record), 128
        return
    check = _check_state(batch, gid, record)
    state = "parked" if check.parked else "prepared"
    if query.state in (None, "pending", state):
        due = None if check.parked else check.next_at
        row = (gid, state, record.group, len(record.messages), record.created_at, None, None, check.checks, due)
        yield (*row, check.last_error or None, record.via, record.target or None, record.source or None), 128


def _resolved_row(gid: str, record: Resolved) -> Row:
    made = (gid, record.outcome, record.group or None, record.messages, record.created_at)
    return (*made, record.resolved_at, record.by, record.checks, None, None, None, None, None)


def _half_rows(batch: Batch, kind: keys.Kind, key: bytes, value: bytes, query: TableQuery) -> _Rows:
    gid, record = _record(batch, kind, key, value)
    if not isinstance(record, Prepared) or not _wanted(record, query):
        return
    state = "parked" if _check_state(batch, gid, record).parked else "prepared"
    if query.state not in (None, "pending", state):
        return
    for sequence, message in enumerate(record.messages):
        yield _half_row(gid, sequence, state, record, message), 256 + len(message.value)


def _half_row(gid: str, sequence: int, state: str, record: Prepared, message: OutgoingMessage) -> Row:
    at = dated(message, record.created_at).deliver_at or None
    content = (message.topic, message.key, message.value, message.headers, message.tag, at)
    about = (record.created_at, record.via, record.target or None, record.source or None)
    return (gid, sequence, state, record.group, *content, *about)


def _op_rows(batch: Batch, kind: keys.Kind, key: bytes, value: bytes, query: TableQuery) -> _Rows:
    at, outcomes = decode_outcomes(value)
    for index, (gid, outcome, by) in enumerate(outcomes):
        yield (keys.OUTCOMES.number(key), index, at, gid, outcome, by), 96


def _delayed_rows(batch: Batch, kind: keys.Kind, key: bytes, value: bytes, query: TableQuery) -> _Rows:
    """Messages that are visible by right and wait for their time; those without a gid have an empty one."""
    waiting = decode_delayed(value)
    yield (waiting.gid, waiting.sequence, waiting.message.topic, waiting.message.deliver_at), 96


def _call_rows(batch: Batch, kind: keys.Kind, key: bytes, value: bytes, query: TableQuery) -> _Rows:
    """Calls of transactions that have an outcome; by an index, the one call that its key names."""
    gid, only = kind.call(key) if isinstance(kind, keys.OfCall) else (kind.name(key), None)
    stored = value if only is None else batch.engine.get("index", keys.CALLS_STATE.key(gid))
    spec = batch.engine.get("tx", keys.CALLS.key(gid))
    if stored is None or spec is None:
        return
    state = decode_state(stored)
    if query.created_before is not None and state.created_at >= query.created_before:
        return
    for index, call in enumerate(decode_calls(spec).spec.calls):
        view = call_views.call_view(gid, index, call, "dropped", state.created_at, state)
        if only in (None, index) and query.state in (None, view.state):
            yield _call_row(view), 256


def _call_row(view: CallView) -> Row:
    what = (view.gid, view.index, view.branch, view.url, view.protocol, view.state, view.attempts)
    when = (view.next_at or None, view.last_error or None, view.finished_at or None, view.created_at)
    return (*what, *when, view.size)


_MAKERS: dict[str, Callable[[Batch, keys.Kind, bytes, bytes, TableQuery], _Rows]] = {
    "transactions": _transaction_rows,
    "half": _half_rows,
    "op": _op_rows,
    "delayed": _delayed_rows,
    "calls": _call_rows,
}


def _record(batch: Batch, kind: keys.Kind, key: bytes, value: bytes) -> tuple[str, Record | None]:
    """The transaction that a key of the history or of an index names."""
    gid = kind.name(key)
    if kind is keys.TRANSACTION:
        return gid, _decode_record(value)
    stored = batch.engine.get("tx", keys.TRANSACTION.key(gid))
    return gid, None if stored is None else _decode_record(stored)


def _wanted(record: Record, query: TableQuery) -> bool:
    old_enough = query.created_before is None or record.created_at < query.created_before
    return old_enough and query.group in (None, record.group)


def _check_state(batch: Batch, gid: str, record: Prepared) -> CheckState:
    stored = batch.engine.get("index", keys.CHECK.key(gid))
    return CheckState(0, record.first_check_at) if stored is None else _decode_check(stored)


def _offsets(batch: Batch, reader: QueueReader, group: str | None) -> Iterator[Row]:
    for view in views.groups(batch, reader, group):
        for one in view.queues:
            yield view.group, view.topic, one.queue, one.offset, one.start, one.end, one.lag, view.leased


# --- splits ------------------------------------------------------------------------------------------------------


def splits(batch: Batch, table: TableName, state: str | None, most: int) -> list[Split]:
    """At most `most` ranges of about the same size, if the keys are spread evenly between the first and the last."""
    if table == "offsets":
        return [Split(None, None)]
    area, _, low, high = _spans(batch, table, state)[0]
    first = next(batch.engine.scan(area, low, high), None)
    last = next(batch.engine.scan_back(area, low, high), None)
    places = _between(first[0], last[0], most) if first and last else []
    tokens = [None, *[f"0.{place.hex()}" for place in places], None]
    return [Split(after, before) for after, before in pairwise(tokens)]


def _between(first: bytes, last: bytes, most: int) -> list[bytes]:
    """Keys that cut [first, last] into `most` ranges, by the first eight bytes in which the two differ."""
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    low = int.from_bytes(first[same : same + 8].ljust(8, b"\0"))
    high = int.from_bytes(last[same : same + 8].ljust(8, b"\0"))
    cuts = {low + (high - low) * number // most for number in range(1, most)}
    return [first[:same] + cut.to_bytes(8) for cut in sorted(cuts) if low < cut < high]
