"""The ledger: of each application that numbers its batches, the last one that was committed, and what the ones before
it held."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.errors import DifferentContent, NotFound
from tallystick.core.ops import CommitBatch, DropParts, OpResult
from tallystick.core.wire import LedgerVersion, LedgerView
from tallystick.store.kv import keys, parts, transactions
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.protocol import ForgetApp

# How many versions before the last one are remembered: for jobs that are run again from a step that is not their last.
# Some 30 bytes each, in a record that is written with every batch.
EARLIER = 32


class Version(Struct, array_like=True):
    """What was committed under a number. No digest: whoever committed gave none."""

    version: int
    messages: int
    digest: str


class LedgerEntry(Struct, array_like=True):
    version: int
    gid: str
    messages: int
    committed_at: int
    digest: str = ""
    earlier: list[Version] = []


_decode = msgspec.msgpack.Decoder(LedgerEntry).decode


def commit(batch: Batch, op: CommitBatch) -> OpResult | None:
    """Commit a batch if it is newer than the last one. A batch that was decided before may come back in other parts
    (a replay splits its tasks anew, a driver that was thought dead goes on): those are dropped, nothing changes."""
    last = entry(batch, op.app)
    if last is not None and op.version <= last.version:
        parts.drop(batch, DropParts([ref.part for ref in op.parts]))
        return transactions.DUPLICATE
    if batch.transaction(op.gid) is not None:
        raise DifferentContent(f"gid {op.gid} has been used before; a batch needs a new one", field="gid")
    claimed = parts.claim(batch, op.parts)
    transactions.resolve(batch, op.gid, None, "committed", "ledger", [], claimed, group=op.app)
    count = sum(record.count for record in claimed)
    earlier = [] if last is None else [*last.earlier, Version(last.version, last.messages, last.digest)][-EARLIER:]
    batch.put(
        "index", keys.APP.key(op.app), encode(LedgerEntry(op.version, op.gid, count, batch.now, op.digest, earlier))
    )
    return None


def forget(batch: Batch, op: ForgetApp) -> None:
    if entry(batch, op.app) is None:
        raise NotFound(f"there is no application {op.app!r} in the ledger", field="app")
    batch.delete("index", keys.APP.key(op.app))


def entry(batch: Batch, app: str) -> LedgerEntry | None:
    stored = batch.get("index", keys.APP.key(app))
    return None if stored is None else _decode(stored)


def view(batch: Batch, app: str) -> LedgerView | None:
    found = entry(batch, app)
    if found is None:
        return None
    earlier = [LedgerVersion(one.version, one.messages, one.digest) for one in found.earlier]
    return _view(app, found, earlier)


def views(batch: Batch, after: str, limit: int) -> list[LedgerView]:
    found: list[LedgerView] = []
    for key, value in batch.scan("index", *keys.APP.after(after)):
        if len(found) >= limit:
            break
        found.append(_view(keys.APP.name(key), _decode(value), []))
    return found


def _view(app: str, found: LedgerEntry, earlier: list[LedgerVersion]) -> LedgerView:
    return LedgerView(app, found.version, found.gid, found.messages, found.committed_at, found.digest, earlier)
