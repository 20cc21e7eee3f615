"""Consumer groups and where each stands in a queue: by a cursor, if it takes messages under leases, or by an offset
that it stored, if it reads by offset.

What lies before a cursor and has no lease is settled. A stored offset is eight bytes; one more byte follows if the
broker only shows what the consumer keeps elsewhere.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.errors import TooLarge
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode

_MIRROR = b"m"


class Cursor(Struct, array_like=True):
    next: int
    leased: int = 0


_decode_cursor = msgspec.msgpack.Decoder(Cursor).decode


def check_group(batch: Batch, name: str) -> None:
    most = batch.settings.limits.groups
    if name not in batch.catalog.groups and len(batch.catalog.groups) >= most:
        raise TooLarge(f"group {name!r} would exceed the limit of {most} consumer groups", field="group")


def group_id(batch: Batch, name: str) -> int:
    known = batch.catalog.groups.get(name)
    if known is None:
        check_group(batch, name)
        batch.counters.groups += 1
        known = batch.catalog.groups[name] = batch.counters.groups
        batch.put("index", keys.GROUP.key(name), keys.u32(known))
    return known


def cursor(batch: Batch, gt: bytes, queue: int) -> Cursor | None:
    found = batch.get("index", keys.CURSOR.key(gt, queue))
    return None if found is None else _decode_cursor(found)


def store_cursor(batch: Batch, gt: bytes, queue: int, cursor: Cursor) -> None:
    batch.put("index", keys.CURSOR.key(gt, queue), encode(cursor))


def has_begun(batch: Batch, gt: bytes, queues: int) -> bool:
    """Whether the group has taken from the topic: then a queue that was added since belongs to it as a whole."""
    return any(batch.get_many("index", cursors(gt, queues)))


def cursors(gt: bytes, queues: int) -> list[bytes]:
    return [keys.CURSOR.key(gt, queue) for queue in range(queues)]


def offset(batch: Batch, gt: bytes, queue: int) -> int | None:
    found = batch.get("index", keys.STORED.key(gt, queue))
    return None if found is None else keys.read_u64(found)


def store_offset(batch: Batch, gt: bytes, queue: int, offset: int, mirror: bool = False) -> None:
    batch.put("index", keys.STORED.key(gt, queue), keys.u64(offset) + (_MIRROR if mirror else b""))


def mirrored(batch: Batch, gt: bytes) -> bool | None:
    """Whether the group's offsets of a topic are only shown here, at least in part; None if it has none."""
    found = [value[8:] == _MIRROR for _, value in batch.scan("index", *keys.STORED.of(gt))]
    return any(found) if found else None
