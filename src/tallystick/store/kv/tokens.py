"""Tokens: who may ask the broker, by name. All of them are in memory; what is kept of a secret is a digest."""

from __future__ import annotations

from tallystick.core.errors import Conflict, NotFound, TooLarge
from tallystick.core.ops import OpResult
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.protocol import DropToken, PutToken


def put(batch: Batch, op: PutToken) -> OpResult | None:
    record, known = op.record, batch.catalog.tokens
    existing = known.get(record.name)
    if existing is not None and existing.id != record.id:
        raise Conflict(
            f"name: there is a token {record.name!r} already; revoke it, or choose another name", field="name"
        )
    if existing is not None:
        return OpResult(duplicate=True)
    if len(known) >= batch.settings.limits.tokens:
        raise TooLarge(f"name: there are {batch.settings.limits.tokens} tokens already; revoke some", field="name")
    batch.catalog.tokens = {**known, record.name: record}
    batch.put("index", keys.TOKEN.key(record.name), encode(record))
    return None


def drop(batch: Batch, op: DropToken) -> None:
    known = batch.catalog.tokens.get(op.name)
    if known is None or op.id not in ("", known.id):
        raise NotFound(f"there is no token {op.name!r}", field="name")
    batch.catalog.tokens = {name: one for name, one in batch.catalog.tokens.items() if name != op.name}
    batch.delete("index", keys.TOKEN.key(op.name))
