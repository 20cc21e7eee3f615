"""Origins: whose a pending transaction is and who is asked about it, numbered.

The line of checks holds an outline of each transaction that was never claimed: its origin's number, when it was made,
how many messages it has. So all that is pending can be listed from the line alone, whatever the messages weigh.
"""

from __future__ import annotations

from struct import Struct as Packer

import msgspec

from tallystick.core.transaction import Undecided
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.kv.catalog import Origin

MOST_ORIGINS = 4_096  # kept at hand; transactions of further ones have no outline, and are read themselves
_OUTLINE = Packer(">IQI")
_decode = msgspec.msgpack.Decoder(Origin).decode


Outline = tuple[Origin, int, int]  # origin, created_at, number of messages


def outline(batch: Batch, record: Undecided) -> bytes:
    """What the line of checks holds of a new transaction; nothing if it would need an origin too many."""
    origin = (record.group, record.via, record.target, record.source)
    number = batch.catalog.origins.get(origin) or _numbered(batch, origin)
    return _OUTLINE.pack(number, record.created_at, len(record.messages)) if number else b""


def _numbered(batch: Batch, origin: Origin) -> int:
    known = batch.catalog.origins
    if origin[1] == "url" or len(known) >= MOST_ORIGINS:  # a URL may be another one for each transaction
        return 0
    number = known[origin] = len(known) + 1
    batch.put("index", keys.ORIGIN.key(number), encode(origin))
    return number


class Outlines:
    """Read beside the writer, from the engine alone."""

    def __init__(self, batch: Batch) -> None:
        self._engine = batch.engine
        self._origins: dict[int, Origin] = {}

    def read(self, value: bytes) -> Outline:
        number, created_at, messages = _OUTLINE.unpack(value)
        return self._origins.get(number) or self._look_up(number), created_at, messages

    def _look_up(self, number: int) -> Origin:
        stored = self._engine.get("index", keys.ORIGIN.key(number))
        if stored is None:
            raise KeyError(f"origin {number} is not stored, but named in the line of checks")
        origin: Origin = _decode(stored)
        self._origins[number] = origin
        return origin
