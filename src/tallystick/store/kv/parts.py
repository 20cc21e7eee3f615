"""Parts: half messages that no transaction claims yet. What nobody claims expires."""

from __future__ import annotations

import zlib
from collections import defaultdict

import msgspec
from msgspec import Struct

from tallystick.core.errors import Conflict, DifferentContent, PartUnavailable
from tallystick.core.message import OutgoingMessage, dated
from tallystick.core.ops import DropParts, OpResult, PartRef, PrepareColumns, PreparePart
from tallystick.store.kv import bodies, delayed, keys, topics
from tallystick.store.kv.batch import NEVER, Batch, encode
from tallystick.store.kv.bodies import ColumnsReference, Reference
from tallystick.store.protocol import ExpireParts, Progress

# Fewer bytes than this are written once more by the commit, into chunks shared with others: many small chunks would
# cost every reader more than that.
SMALL_BYTES = 64 * 1024


class Laid(Struct, array_like=True):
    """A body that this part has laid down for one queue; of one in columns, when its messages came."""

    topic_id: int
    queue: int
    count: int
    body: bytes
    born_at: int = 0


class PartRecord(Struct, array_like=True):
    expires_at: int
    count: int
    check: int  # a checksum of the messages, to know them again
    messages: list[tuple[int, OutgoingMessage]]  # those kept here, each with its sequence
    laid: list[Laid]


Claimed = list[PartRecord]
_decode = msgspec.msgpack.Decoder(PartRecord).decode


def prepare(batch: Batch, op: PreparePart) -> OpResult | None:
    check = _checksum(op.messages)
    if _is_known(batch, op, len(op.messages), check):
        return OpResult(duplicate=True)
    topics.require(batch, {message.topic for message in op.messages})
    record = PartRecord(0, len(op.messages), check, [], [])
    if sum(len(message.value) for message in op.messages) < SMALL_BYTES:
        record.messages = [(sequence, dated(message, batch.now)) for sequence, message in enumerate(op.messages)]
    else:
        _lay_down(batch, op, record)
    _keep(batch, op, record)
    return None


def prepare_columns(batch: Batch, op: PrepareColumns) -> OpResult | None:
    if _is_known(batch, op, op.count, op.check):
        return OpResult(duplicate=True)
    topics.require(batch, op.topics)
    kept = [(sequence, dated(message, batch.now)) for sequence, message in op.messages]
    _keep(batch, op, PartRecord(0, op.count, op.check, kept, _lay_columns(batch, op)))
    return None


def _is_known(batch: Batch, op: PreparePart | PrepareColumns, count: int, check: int) -> bool:
    """Whether this request has come before; another one in its place is refused."""
    stored = batch.get("tx", keys.PART.key(op.part, op.index))
    if stored is None:
        return False
    known = _decode(stored)
    if (known.count, known.check) != (count, check):
        raise DifferentContent(f"part {op.part} index {op.index} holds other messages", field="part")
    return True


def _keep(batch: Batch, op: PreparePart | PrepareColumns, record: PartRecord) -> None:
    key = keys.PART.key(op.part, op.index)
    record.expires_at = batch.now + (batch.settings.part_ttl_ms if op.ttl_ms is None else op.ttl_ms)
    batch.put("tx", key, encode(record))
    batch.put("index", keys.PART_EXPIRY.key(record.expires_at, key), b"")
    batch.catalog.first_part_end = min(batch.catalog.first_part_end, record.expires_at)
    batch.counters.parts += 1


def _lay_columns(batch: Batch, op: PrepareColumns) -> list[Laid]:
    laid = []
    for piece in op.pieces:
        topic = batch.catalog.topics[piece.topic]
        if piece.queues != topic.queues:
            # It got more queues, or was made anew: a key would be in another queue than in later requests.
            raise Conflict(f"topic {topic.name!r} has changed meanwhile; send the part again", field="topic")
        body = keys.u64(_next_number(batch))
        for (area, key), half in zip(bodies.entries(topic.id, body), (piece.columns, piece.values), strict=True):
            batch.put(area, key, half)
        laid.append(Laid(topic.id, piece.queue, piece.count, body, batch.now))
    return laid


def _checksum(messages: list[OutgoingMessage]) -> int:
    check = 0
    for message in messages:
        check = zlib.crc32(message.value, check)
        check = zlib.crc32(f"{message.topic}\0{message.key}\0{message.headers}\0{message.tag}".encode(), check)
    return check


def _lay_down(batch: Batch, op: PreparePart, record: PartRecord) -> None:
    by_topic: defaultdict[str, list[tuple[int, OutgoingMessage]]] = defaultdict(list)
    for sequence, message in enumerate(op.messages):
        if message.deliver_at or message.delay_ms:
            record.messages.append((sequence, dated(message, batch.now)))
        else:
            by_topic[message.topic].append((sequence, message))
    turn = zlib.crc32(op.part.encode())
    for name, messages in by_topic.items():
        topic = batch.catalog.topics[name]
        for queue, body in bodies.split(messages, topic.queues, batch.now, turn):
            key = keys.BODY.key(topic.id, _next_number(batch))
            batch.put("log", key, encode(body))
            record.laid.append(Laid(topic.id, queue, len(body.values), key))


def _next_number(batch: Batch) -> int:
    batch.counters.bodies += 1
    return batch.counters.bodies


def _records(batch: Batch, part_id: str) -> list[tuple[bytes, PartRecord]]:
    return [(key, _decode(value)) for key, value in batch.scan("tx", *keys.PART.of(part_id))]


def topics_of(batch: Batch, part_id: str) -> set[str]:
    """The topics that a part holds messages for; one that was deleted meanwhile has none any more."""
    known = batch.catalog.topics_by_id
    found = [record for _, record in _records(batch, part_id)]
    laid = {one.topic_id for record in found for one in record.laid}
    return {message.topic for record in found for _, message in record.messages} | {
        known[number].name for number in laid if number in known
    }


def claim(batch: Batch, refs: list[PartRef]) -> Claimed:
    """What the parts hold, which are gone from then on; or an error, and nothing has changed."""
    found: dict[str, list[tuple[bytes, PartRecord]]] = {}
    for ref in refs:
        if ref.part in found:
            raise PartUnavailable(f"part {ref.part} is named twice", field="parts")
        found[ref.part] = _records(batch, ref.part)
        _check(batch, ref, [record for _, record in found[ref.part]])
    for records in found.values():
        for key, record in records:
            _forget(batch, key, record)
    return [record for records in found.values() for _, record in records]


def _check(batch: Batch, ref: PartRef, records: list[PartRecord]) -> None:
    count = sum(record.count for record in records)
    if count != ref.count:
        raise PartUnavailable(
            f"part {ref.part} holds {count} messages, the commit names {ref.count}; "
            "it may have expired or been claimed before",
            field="parts",
        )
    if any(laid.topic_id not in batch.catalog.topics_by_id for record in records for laid in record.laid):
        raise PartUnavailable(f"a topic of part {ref.part} was deleted, and the messages with it", field="parts")


def publish(batch: Batch, claimed: Claimed, gid: str, first: int) -> int:
    """Put claimed messages into their queues as messages `first` and following of a transaction; tells their number."""
    count = 0
    for record in claimed:
        for sequence, message in record.messages:
            delayed.append(batch, message, gid, first + count + sequence)
        for laid in record.laid:
            batch.log.refer((laid.topic_id, laid.queue), laid.count, _reference(laid, gid, first + count))
        count += record.count
    return count


def _reference(laid: Laid, gid: str, first: int) -> Reference | ColumnsReference:
    if bodies.in_columns(laid.body):
        return ColumnsReference(0, 0, laid.body, gid, first, laid.born_at)
    return Reference(0, 0, laid.body, gid, first)


def drop(batch: Batch, op: DropParts) -> None:
    for part_id in op.parts:
        for key, record in _records(batch, part_id):
            _remove(batch, key, record)


def _remove(batch: Batch, key: bytes, record: PartRecord) -> None:
    for laid in record.laid:
        for entry in bodies.entries(laid.topic_id, laid.body):
            batch.delete(*entry)
    _forget(batch, key, record)


def _forget(batch: Batch, key: bytes, record: PartRecord) -> None:
    batch.delete("tx", key)
    batch.delete("index", keys.PART_EXPIRY.key(record.expires_at, key))
    batch.counters.parts -= 1


def expire(batch: Batch, op: ExpireParts) -> Progress:
    known = batch.catalog.first_part_end
    if batch.now < known:
        return Progress(0, next_at=None if known == NEVER else known)
    done, first = 0, NEVER
    expiring = batch.foreseeing(
        batch.scan("index", *keys.PART_EXPIRY.since(known)),
        lambda entry: [("tx", keys.PART_EXPIRY.part(entry))] if keys.PART_EXPIRY.at(entry) <= batch.now else [],
    )
    for entry, _ in expiring:
        at = keys.PART_EXPIRY.at(entry)
        if at > batch.now or done >= op.limit:
            first = at
            break
        key = keys.PART_EXPIRY.part(entry)
        stored = batch.get("tx", key)
        if stored is not None:
            _remove(batch, key, _decode(stored))
        done += 1
    batch.catalog.first_part_end = first
    if first == NEVER:
        return Progress(done)
    return Progress(done, more=True) if first <= batch.now else Progress(done, next_at=first)
