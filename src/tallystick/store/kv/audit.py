"""The audit log: who did what, written in the same unit as the deed, kept for a time of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import OpResult
from tallystick.core.wire import AuditLine
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.protocol import Audited, AuditQuery, ExpireAudit, Progress, Result

EXAMINED = 50_000  # lines for one page, which ends early if it filters much away

Said = tuple[str, str, str, str, str]  # who, kind, source, action, subject
decode_line = msgspec.msgpack.Decoder(Said).decode


def audited(batch: Batch, op: Audited, handlers: Mapping[type, Callable[[Batch, Any], Result]]) -> Result:
    """What is refused raises, or says so, and leaves no line."""
    result = handlers[type(op.op)](batch, op.op)
    if not (isinstance(result, OpResult) and result.error):
        write_down(batch, op)
    return result


def write_down(batch: Batch, op: Audited) -> None:
    batch.counters.audit += 1
    said: Said = (op.who, op.kind, op.source, op.action, op.subject)
    batch.put("index", keys.AUDIT.key(batch.now, batch.counters.audit), encode(said))


def expire(batch: Batch, op: ExpireAudit) -> Progress:
    oldest = batch.now - batch.settings.audit_retention_ms
    done = 0
    for key, _ in islice(batch.scan("index", *keys.AUDIT.all), op.limit + 1):
        at = keys.AUDIT.at(key)
        if at > oldest:
            return Progress(done, next_at=at + batch.settings.audit_retention_ms)
        if done == op.limit:
            return Progress(done, more=True)
        batch.delete("index", key)
        done += 1
    return Progress(done)


def newest(batch: Batch, query: AuditQuery) -> tuple[list[AuditLine], str | None]:
    """A page of what was done, from the last deed back, and where the next page begins."""
    low, high = keys.AUDIT.all
    if query.since is not None:
        low = keys.AUDIT.before(query.since)[1]
    if query.after is not None:
        high = _place(query.after)
    found: list[AuditLine] = []
    key = b""
    for key, line in islice(_lines_back(batch, low, high), EXAMINED):
        if query.who in (None, line.who) and query.action in (None, line.action):
            found.append(line)
            if len(found) >= query.limit:
                return found, key.hex()
    return found, key.hex() if _more_before(batch, low, key) else None


def _lines_back(batch: Batch, low: bytes, high: bytes) -> Iterator[tuple[bytes, AuditLine]]:
    for key, value in batch.engine.scan_back("index", low, high) if low < high else ():
        who, kind, source, action, subject = decode_line(value)
        yield key, AuditLine(keys.AUDIT.at(key), who, kind, source, action, subject, key.hex())


def _more_before(batch: Batch, low: bytes, key: bytes) -> bool:
    return low < key and next(batch.engine.scan_back("index", low, key), None) is not None


def _place(token: str) -> bytes:
    try:
        key = bytes.fromhex(token)
    except ValueError:
        key = b""
    if not keys.AUDIT.holds(key):
        raise InvalidRequest(f"after: {token[:80]!r} is no place in the audit log", field="after")
    return key
