"""What waits and is to be due now: checks that were made before, and tries of calls that failed before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tallystick.core.errors import NotFound
from tallystick.core.ops import OpResult
from tallystick.core.transaction import Prepared
from tallystick.store.kv import calls, checks, keys
from tallystick.store.kv.batch import Batch, Look
from tallystick.store.protocol import Hurry, HurryAll, Progress

EXAMINED = 10_000


def one(batch: Batch, op: Hurry) -> OpResult | None:
    record = batch.transaction(op.gid)
    if record is None:
        raise NotFound(f"transaction {op.gid} is not known here", field="gid")
    if isinstance(record, Prepared):
        moved = checks.hurry(batch, op.gid, record)
    else:
        state = batch.calls_state(op.gid)
        moved = bool(state and calls.hurry(batch, op.gid, state))
    return None if moved else OpResult(duplicate=True)


def all_of_them(batch: Batch, op: HurryAll) -> Progress:
    """Transactions, not calls, are counted. `more` if there may be others."""
    done = 0
    gids = list(islice(_far_away(batch, batch.now + op.after_ms), EXAMINED))
    for gid in batch.foreseeing_for(dict.fromkeys(gids), lambda gid: _looks(batch, gid)):
        if done >= op.limit:
            return Progress(done, more=True)
        done += one(batch, Hurry(gid)) is None
    return Progress(done, more=len(gids) >= EXAMINED)


def _looks(batch: Batch, gid: str) -> Iterator[Look]:
    yield from batch.looks_at(gid, checked=True)
    yield "index", keys.CALLS_STATE.key(gid)


def _far_away(batch: Batch, after: int) -> Iterator[str]:
    for channel in batch.catalog.channels.values():
        if channel.via == "call":
            for key, why in batch.scan("index", *keys.DUE_CALL.since(channel.id, after + 1)):
                if why != calls.FIRST:
                    yield keys.DUE_CALL.call(key)[0]
            continue
        line = batch.scan("index", *keys.DUE.since(channel.id, after + 1))
        for key, _ in batch.foreseeing(line, lambda key: [("index", keys.CHECK.key(keys.DUE.name(key)))]):
            gid = keys.DUE.name(key)
            if batch.get("index", keys.CHECK.key(gid)) is not None:
                yield gid
