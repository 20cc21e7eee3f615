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
    done = _expire_kept(batch, op.limit)
    kept = keys.OUTCOMES.since(batch.counters.first_outcome)
    for key, value in islice(batch.scan("index", *kept), op.limit):
        resolved_at, gids = decode_outcomes(value)
        if resolved_at > oldest:
            return Progress(done, next_at=resolved_at + batch.settings.dedup_retention_ms)
        if done and done + len(gids) > op.limit:
            return Progress(done, more=True)
        batch.foresee({"index": [keys.CALLS_STATE.key(gid) for gid, _, _ in gids]})
        for gid, _, _ in gids:
            _forget(batch, gid)
        batch.delete("index", key)
        batch.counters.first_outcome = keys.OUTCOMES.number(key) + 1
        done += len(gids)
    return Progress(done, more=done >= op.limit)


def _forget(batch: Batch, gid: str) -> None:
    """Unless it has calls that are not done: then it is kept, and looked at again after another retention."""
    state = batch.calls_state(gid)
    if state is not None:
        if not state.finished_at:
            batch.put("index", keys.KEPT.key(batch.now + batch.settings.dedup_retention_ms, gid), b"")
            return
        batch.forget_calls(gid)
    batch.delete("tx", keys.TRANSACTION.key(gid))


def _expire_kept(batch: Batch, limit: int) -> int:
    done = 0
    found = islice(batch.scan("index", *keys.KEPT.before(batch.now)), limit)
    for key, _ in batch.foreseeing(found, lambda key: [("index", keys.CALLS_STATE.key(keys.KEPT.name(key)))]):
        batch.delete("index", key)
        _forget(batch, keys.KEPT.name(key))
        done += 1
    return done
