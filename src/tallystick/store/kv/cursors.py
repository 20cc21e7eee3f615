"""Where a group stands in a queue: what lies before its cursor and has no lease is settled."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode


class Cursor(Struct, array_like=True):
    next: int
    leased: int = 0


decode_cursor = msgspec.msgpack.Decoder(Cursor).decode


def store_cursor(batch: Batch, gt: bytes, queue: int, cursor: Cursor) -> None:
    batch.put("index", keys.CURSOR.key(gt, queue), encode(cursor))
