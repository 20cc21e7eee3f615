"""Parts: half messages that no transaction claims yet. What nobody claims expires."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.errors import DifferentContent, PartUnavailable
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import OpResult, PartRef, PreparePart
from tallystick.store.kv import keys, topics
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.protocol import ExpireParts, Progress


class PartRecord(Struct, array_like=True):
    expires_at: int
    messages: list[OutgoingMessage]


_decode = msgspec.msgpack.Decoder(PartRecord).decode


def prepare(batch: Batch, op: PreparePart) -> OpResult | None:
    key = keys.part(op.part, op.index)
    stored = batch.get("tx", key)
    if stored is not None:
        if _decode(stored).messages != op.messages:
            raise DifferentContent(f"part {op.part} index {op.index} holds other messages", field="part")
        return OpResult(duplicate=True)
    topics.require(batch, [message.topic for message in op.messages])
    ttl = batch.settings.part_ttl_ms if op.ttl_ms is None else op.ttl_ms
    expires = batch.now + ttl
    batch.put("tx", key, encode(PartRecord(expires, op.messages)))
    batch.put("index", _expiry(expires, op.part, op.index), b"")
    batch.counters.parts += 1
    return None


def _expiry(at: int, part_id: str, index: int) -> bytes:
    return b"e" + keys.u64(at) + keys.part(part_id, index)


def _records(batch: Batch, part_id: str) -> list[tuple[bytes, PartRecord]]:
    prefix = keys.part_prefix(part_id)
    found = batch.scan("tx", prefix, keys.after_prefix(prefix))
    return [(key, _decode(value)) for key, value in found]


def claim(batch: Batch, refs: list[PartRef]) -> list[OutgoingMessage]:
    """The messages of all the parts, which are gone from then on; or an error, and nothing has changed."""
    found: dict[str, list[tuple[bytes, PartRecord]]] = {}
    for ref in refs:
        if ref.part in found:
            raise PartUnavailable(f"part {ref.part} is named twice", field="parts")
        records = found[ref.part] = _records(batch, ref.part)
        count = sum(len(record.messages) for _, record in records)
        if count != ref.count:
            raise PartUnavailable(
                f"part {ref.part} holds {count} messages, the commit names {ref.count}; "
                "it may have expired or been claimed before",
                field="parts",
            )
    messages = []
    for records in found.values():
        for key, record in records:
            _remove(batch, key, record)
            messages.extend(record.messages)
    return messages


def drop(batch: Batch, part_id: str) -> None:
    for key, record in _records(batch, part_id):
        _remove(batch, key, record)


def _remove(batch: Batch, key: bytes, record: PartRecord) -> None:
    batch.delete("tx", key)
    batch.delete("index", b"e" + keys.u64(record.expires_at) + key)
    batch.counters.parts -= 1


def expire(batch: Batch, op: ExpireParts) -> Progress:
    done = 0
    for entry, _ in batch.scan("index", b"e", b"f"):
        at = keys.read_u64(entry, 1)
        if at > batch.now:
            return Progress(done, next_at=at)
        if done >= op.limit:
            return Progress(done, more=True)
        batch.delete("index", entry)
        batch.delete("tx", entry[9:])
        batch.counters.parts -= 1
        done += 1
    return Progress(done)
