"""The store's own state as tables, page by page: transactions, half messages, outcomes, offsets, deeds.

Pages are read beside the writer, straight from the engine: nothing here may touch what the writer keeps in memory.
The history is read in order of gid, each transaction once. Pending transactions are found through the indexes of
checks, so that they cost nothing for the history; one that is checked meanwhile moves in there and may be seen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import msgspec

from tallystick.core.calls import CallView
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import KeptMessage, dated
from tallystick.core.transaction import CheckState, Prepared, Record, Resolved, Undecided
from tallystick.core.wire import Split, TableName
from tallystick.store.kv import call_views, keys, views
from tallystick.store.kv.audit import decode_line
from tallystick.store.kv.batch import Batch, Look, decode_pending
from tallystick.store.kv.call_records import decode_calls, decode_state
from tallystick.store.kv.catalog import decode_mark
from tallystick.store.kv.delayed import decode_delayed
from tallystick.store.kv.engine import Area
from tallystick.store.kv.origins import Outlines
from tallystick.store.kv.reader import QueueReader
from tallystick.store.kv.tombstones import decode_outcomes
from tallystick.store.protocol import TablePage, TableQuery

PAGE_BYTES = 8 * 1024 * 1024
EXAMINED_PER_PAGE = 50_000  # a page that filters much away ends early
_MOST_LINES = 1_000  # that are looked at to cut a table into ranges

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
    "audit": ("at", "who", "kind", "source", "action", "subject"),
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


_Entry = tuple[int, keys.Kind, bytes, bytes]  # number of the span it lies in, kind, key, value


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
    return [_whole(keys.AUDIT if table == "audit" else keys.DELAYED)]


def _whole(kind: keys.Kind) -> _Span:
    return _Span("index", kind, *kind.all)


def page(batch: Batch, reader: QueueReader, query: TableQuery) -> TablePage:
    rows: list[Row] = []
    place: str | None = None
    if query.table == "offsets":
        rows = list(_offsets(batch, reader, query.group))
    else:
        make, at_once = _MAKERS[query.table]
        entries = _entries(batch, query)
        if query.table in _LOOKS:
            entries = batch.foreseeing_for(entries, _LOOKS[query.table])
        size = examined = 0
        while some := list(islice(entries, min(at_once, query.limit - len(rows)))):
            for row, weight in make(batch, some, query):
                rows.append(row)
                size += weight
            examined += len(some)
            if len(rows) >= query.limit or size >= PAGE_BYTES or examined > EXAMINED_PER_PAGE:
                number, _, key, _ = some[-1]
                place = f"{number}.{key.hex()}"
                break
    names = COLUMNS[query.table]
    columns: Iterable[Iterable[Any]] = zip(*rows, strict=True) if rows else [()] * len(names)
    return TablePage({name: list(column) for name, column in zip(names, columns, strict=True)}, place)


def _entries(batch: Batch, query: TableQuery) -> Iterator[_Entry]:
    """The keys behind `after`, up to and with `before`."""
    spans = _spans(batch, query.table, query.state)
    first, start = _read_token(spans, query.after, "after") if query.after else (0, None)
    last, stop = _read_token(spans, query.before, "before") if query.before else (len(spans) - 1, None)
    for number in range(first, last + 1):
        area, kind, low, high = spans[number]
        begin = max(low, keys.behind(start)) if start is not None and number == first else low
        end = min(high, keys.behind(stop)) if stop is not None and number == last else high
        for key, value in batch.engine.scan(area, begin, end):
            yield number, kind, key, value


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


def _transaction_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    # Of what was never claimed for a check the line of checks itself says all.
    outlined = [entry for entry in entries if entry[3] and entry[1] is keys.DUE]
    if outlined and query.state != "parked":
        yield from _outlined_rows(batch, outlined, query)
    if len(outlined) < len(entries):
        rest = [entry for entry in entries if not (entry[3] and entry[1] is keys.DUE)] if outlined else entries
        yield from _recorded_rows(batch, rest, query)


def _outlined_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    outlines, name, at = Outlines(batch), keys.DUE.name, keys.DUE.at
    oldest = query.created_before
    for _, _, key, value in entries:
        (group, via, target, source), created_at, messages = outlines.read(value)
        if (oldest is None or created_at < oldest) and query.group in (None, group):
            about = via, target or None, source or None
            yield (name(key), "prepared", group, messages, created_at, None, None, 0, at(key), None, *about), 128


def _recorded_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    found = [(gid, record) for gid, record in _records(batch, entries) if record and _wanted(record, query)]
    checks = _check_states(batch, found)
    for gid, record in found:
        if isinstance(record, Resolved):
            if query.state in (None, record.outcome):
                yield _resolved_row(gid, record), 128
            continue
        check = checks.get(gid) or CheckState(0, record.first_check_at)
        state = "parked" if check.parked else "prepared"
        if query.state in (None, "pending", state):
            due = None if check.parked else check.next_at
            row = (gid, state, record.group, len(record.messages), record.created_at, None, None, check.checks, due)
            yield (*row, check.last_error or None, record.via, record.target or None, record.source or None), 128


def _resolved_row(gid: str, record: Resolved) -> Row:
    made = (gid, record.outcome, record.group or None, record.messages, record.created_at)
    return (*made, record.resolved_at, record.by, record.checks, None, None, None, None, None)


def _half_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    for _, kind, key, _ in entries:
        gid = kind.name(key)
        stored = batch.get("tx", keys.TRANSACTION.key(gid))
        record = None if stored is None else _decode_record(stored)
        if not isinstance(record, Prepared) or not _wanted(record, query):
            continue
        check = _check_states(batch, [(gid, record)]).get(gid)
        state = "parked" if check and check.parked else "prepared"
        if query.state in (None, "pending", state):
            for sequence, message in enumerate(record.messages):
                yield _half_row(gid, sequence, state, record, message), 256 + len(message.value)


def _half_row(gid: str, sequence: int, state: str, record: Prepared, message: KeptMessage) -> Row:
    at = dated(message, record.created_at).deliver_at or None
    content = (message.topic, message.key, message.value, message.headers, message.tag, at)
    about = (record.created_at, record.via, record.target or None, record.source or None)
    return (gid, sequence, state, record.group, *content, *about)


def _op_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    for _, _, key, value in entries:
        at, outcomes = decode_outcomes(value)
        for index, (gid, outcome, by) in enumerate(outcomes):
            yield (keys.OUTCOMES.number(key), index, at, gid, outcome, by), 96


def _delayed_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    """Messages that are visible by right and wait for their time; those without a gid have an empty one."""
    for _, _, _, value in entries:
        waiting = decode_delayed(value)
        yield (waiting.gid, waiting.sequence, waiting.message.topic, waiting.message.deliver_at), 96


def _audit_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    for _, _, key, value in entries:
        yield (keys.AUDIT.at(key), *decode_line(value)), 128


def _call_rows(batch: Batch, entries: Sequence[_Entry], query: TableQuery) -> _Rows:
    """Calls of transactions that have an outcome; by an index, the one call that its key names."""
    for _, kind, key, value in entries:
        gid, only = kind.call(key) if isinstance(kind, keys.OfCall) else (kind.name(key), None)
        stored = value if only is None else batch.get("index", keys.CALLS_STATE.key(gid))
        spec = batch.get("tx", keys.CALLS.key(gid))
        if stored is None or spec is None:
            continue
        state = decode_state(stored)
        if query.created_before is not None and state.created_at >= query.created_before:
            continue
        for index, call in enumerate(decode_calls(spec).spec.calls):
            view = call_views.call_view(gid, index, call, "dropped", state.created_at, state)
            if only in (None, index) and query.state in (None, view.state):
                yield _call_row(view), 256


def _call_row(view: CallView) -> Row:
    what = (view.gid, view.index, view.branch, view.url, view.protocol, view.state, view.attempts)
    when = (view.next_at or None, view.last_error or None, view.finished_at or None, view.created_at)
    return (*what, *when, view.size)


def _half_looks(entry: _Entry) -> list[Look]:
    gid = entry[1].name(entry[2])
    return [("tx", keys.TRANSACTION.key(gid)), ("index", keys.CHECK.key(gid))]


def _call_looks(entry: _Entry) -> list[Look]:
    _, kind, key, _ = entry
    if not isinstance(kind, keys.OfCall):
        return [("tx", keys.CALLS.key(kind.name(key)))]
    gid, _ = kind.call(key)
    return [("index", keys.CALLS_STATE.key(gid)), ("tx", keys.CALLS.key(gid))]


# What an engine that is far away is asked for together, where rows are made of one key at a time.
_LOOKS: dict[str, Callable[[_Entry], list[Look]]] = {"half": _half_looks, "calls": _call_looks}

_Maker = Callable[[Batch, Sequence[_Entry], TableQuery], _Rows]
# How the rows of each table are made, and of how many keys at a time: of one where a key may stand for many rows.
_MAKERS: dict[str, tuple[_Maker, int]] = {
    "transactions": (_transaction_rows, 256),
    "half": (_half_rows, 1),
    "op": (_op_rows, 1),
    "delayed": (_delayed_rows, 256),
    "calls": (_call_rows, 1),
    "audit": (_audit_rows, 256),
}


def _records(batch: Batch, entries: Sequence[_Entry]) -> Iterator[tuple[str, Undecided | Resolved | None]]:
    """The transactions that keys of the history or of an index name, without their messages."""
    named = [(keys.TRANSACTION.key(gid), gid) for gid in (kind.name(key) for _, kind, key, _ in entries)]
    if entries and entries[0][1] is keys.TRANSACTION:
        stored: dict[bytes, bytes | None] = {key: value for _, _, key, value in entries}
    else:
        stored = _values(batch, "tx", [key for key, _ in named])
    for key, gid in named:
        value = stored[key]
        yield gid, None if value is None else decode_pending(value)


def _values(batch: Batch, area: Area, wanted: Collection[bytes]) -> dict[bytes, bytes | None]:
    if batch.engine.remote:
        batch.foresee({area: wanted})
        return {key: batch.get(area, key) for key in wanted}
    ordered = sorted(wanted)
    return dict(zip(ordered, batch.engine.get_many(area, ordered), strict=True))


def _wanted(record: Undecided | Resolved, query: TableQuery) -> bool:
    old_enough = query.created_before is None or record.created_at < query.created_before
    return old_enough and query.group in (None, record.group)


def _check_states(batch: Batch, records: Iterable[tuple[str, Undecided | Resolved]]) -> dict[str, CheckState]:
    """What checking has come to, for those that were ever claimed.

    Which those can be is told by the marks as they are stored: the writer's own may be ahead. They are read after the
    transactions, so whatever was claimed when those were found is known. A mark saves a look at the disk; of an engine
    that is far away it is not asked for, because the looks of many cost one round trip.
    """
    claimed: dict[int, int] = {}
    wanted: dict[bytes, str] = {}
    for gid, record in records:
        if isinstance(record, Undecided):
            if record.channel not in claimed and not batch.engine.remote:
                mark = batch.engine.get("index", keys.MARK.key(record.channel))
                claimed[record.channel] = 0 if mark is None else decode_mark(mark).claimed
            if batch.engine.remote or record.first_check_at <= claimed[record.channel]:
                wanted[keys.CHECK.key(gid)] = gid
    found = _values(batch, "index", wanted) if wanted else {}
    return {wanted[key]: _decode_check(value) for key, value in found.items() if value is not None}


def _offsets(batch: Batch, reader: QueueReader, group: str | None) -> Iterator[Row]:
    for view in views.groups(batch, reader, group):
        for one in view.queues:
            yield view.group, view.topic, one.queue, one.offset, one.start, one.end, one.lag, view.leased


# --- splits ------------------------------------------------------------------------------------------------------


def splits(batch: Batch, table: TableName, state: str | None, most: int) -> list[Split]:
    """At most `most` ranges of about the same size, if the keys of each line are spread evenly over it."""
    if table == "offsets":
        return [Split(None, None)]
    found = (line for number, span in enumerate(_spans(batch, table, state)) for line in _lines(batch, number, span))
    lines = list(islice(found, _MOST_LINES))
    places: list[str] = []
    for at, (number, first, last) in enumerate(lines):
        places.extend(f"{number}.{place.hex()}" for place in _between(first, last, most // len(lines)))
        ends = (at + 1) * most // len(lines) > at * most // len(lines)  # several short lines make one range
        if ends and at + 1 < len(lines):
            places.append(f"{number}.{last.hex()}")
    return [Split(after, before) for after, before in pairwise([None, *places, None])]


def _lines(batch: Batch, number: int, span: _Span) -> Iterator[tuple[int, bytes, bytes]]:
    """The first and the last key of a span; of checks, of each channel, for each has a line in order of time."""
    low = span.low
    while (first := next(batch.engine.scan(span.area, low, span.high), None)) is not None:
        end = keys.DUE.line_of(first[0])[1] if span.kind is keys.DUE else span.high
        last = next(batch.engine.scan_back(span.area, low, end), first)
        yield number, first[0], last[0]
        low = end


def _between(first: bytes, last: bytes, most: int) -> list[bytes]:
    """Keys that cut [first, last] into `most` ranges, by the first eight bytes in which the two differ."""
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    low = int.from_bytes(first[same : same + 8].ljust(8, b"\0"))
    high = int.from_bytes(last[same : same + 8].ljust(8, b"\0"))
    cuts = {low + (high - low) * number // most for number in range(1, most)}
    return [first[:same] + cut.to_bytes(8) for cut in sorted(cuts) if low < cut < high]
