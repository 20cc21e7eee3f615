"""The end of tombstones: after the dedup retention a gid is forgotten."""

from __future__ import annotations

from itertools import islice

import msgspec

from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch
from tallystick.store.protocol import ExpireTombstones, Progress

Outcomes = tuple[int, list[tuple[str, str, str]]]  # resolved at; gid, outcome, by
decode_outcomes = msgspec.msgpack.Decoder(Outcomes).decode


def expire(batch: Batch, op: ExpireTombstones) -> Progress:
    """Forget the oldest group commits' outcomes, at most `limit` tombstones (and at least one group commit)."""
    oldest = batch.now - batch.settings.dedup_retention_ms
    done = 0
    start = b"o" + keys.u64(batch.counters.first_outcome)
    for key, value in islice(batch.scan("index", start, b"p"), op.limit):
        resolved_at, gids = decode_outcomes(value)
        if resolved_at > oldest:
            return Progress(done, next_at=resolved_at + batch.settings.dedup_retention_ms)
        if done and done + len(gids) > op.limit:
            return Progress(done, more=True)
        for gid, _, _ in gids:
            batch.delete("tx", keys.transaction(gid))
        batch.delete("index", key)
        batch.counters.first_outcome = keys.read_u64(key, 1) + 1
        done += len(gids)
    return Progress(done, more=done >= op.limit)
