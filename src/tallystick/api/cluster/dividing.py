"""Operations that came together, divided among the stores that they belong to, and their answers put back together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tallystick.api.cluster.queues import by_store
from tallystick.core.errors import TallystickError
from tallystick.core.ids import store_of_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    ClientOp,
    CommitBatch,
    CommitOffsets,
    DropParts,
    Nack,
    OpResult,
    Position,
    PrepareColumns,
    PreparePart,
    Renew,
    Send,
)
from tallystick.core.placing import cluster_queue, store_for

MARK = "~"  # between a store's id and a receipt of it; no receipt has one before its topic's name ends


class StorePlaces:
    """Which store something belongs to. `stores` are in the order of their numbers, `spare` gives one for what may go
    anywhere."""

    def __init__(self, stores: Sequence[str], spare: Callable[[], str]) -> None:
        self.stores, self._spare = stores, spare

    def of_gid(self, gid: str) -> str:
        """A gid names its store; one of the user's own making belongs to the store that its hash names."""
        named = store_of_gid(gid)
        return named if named in self.stores else store_for(gid, self.stores)

    def of_app(self, app: str) -> str:
        """All batches of an application are kept in one store: so it can tell which were committed."""
        return store_for(app, self.stores)

    def of_messages(self, messages: Sequence[OutgoingMessage]) -> str:
        """Order per key: the first key names the store."""
        key = messages[0].key if messages else None
        return self._spare() if key is None else store_for(key, self.stores)

    def divided(self, op: ClientOp) -> list[tuple[str, ClientOp]]:
        """The operation for each store that has to do with it; mostly there is one."""
        if isinstance(op, Ack | Nack | Renew):
            return [(store, _with(op, receipts=some)) for store, some in self._receipts(op.receipts).items()]
        if isinstance(op, AnswerChecks):
            return self._answers(op)
        if isinstance(op, CommitOffsets):
            return self._offsets(op)
        if isinstance(op, DropParts):
            divided = _grouped(op.parts, self.of_gid)
            return [(store, DropParts(parts)) for store, parts in divided.items()]
        return [(self._of_one(op), op)]

    def _of_one(self, op: Any) -> str:
        if isinstance(op, Send) and op.gid is None:
            return self.of_messages(op.messages)
        if isinstance(op, PreparePart):
            return self.of_gid(op.part)
        if isinstance(op, CommitBatch):
            return self.of_app(op.app)
        return self.of_gid(op.gid)

    def _receipts(self, receipts: list[str]) -> dict[str, list[str]]:
        divided: dict[str, list[str]] = defaultdict(list)
        for receipt in receipts:
            store, mark, rest = receipt.partition(MARK)
            known = mark and store in self.stores
            # One that names no store holds nothing, which any store can tell.
            divided[store if known else self.stores[0]].append(rest if known else receipt)
        return divided

    def _answers(self, op: AnswerChecks) -> list[tuple[str, ClientOp]]:
        return [
            (
                store,
                _with(
                    op,
                    answers={gid: op.answers[gid] for gid in gids},
                    reasons={gid: op.reasons[gid] for gid in gids if gid in op.reasons},
                ),
            )
            for store, gids in _grouped(op.answers, self.of_gid).items()
        ]

    def _offsets(self, op: CommitOffsets) -> list[tuple[str, ClientOp]]:
        count = len(self.stores)
        expected = by_store(op.expected or {}, count)
        return [
            (
                self.stores[number],
                _with(op, offsets=some, expected=None if op.expected is None else expected.get(number, {})),
            )
            for number, some in by_store(op.offsets, count).items()
        ]


def _with(op: ClientOp, **changed: Any) -> Any:
    return msgspec.structs.replace(op, **changed)


def _grouped(names: Iterable[str], place: Callable[[str], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[place(name)].append(name)
    return found


def refused(error: TallystickError) -> OpResult:
    """What is told of an operation whose store could not carry it out, while those of others did."""
    return OpResult(error=error.code, detail=error.detail, field=error.field)


def numbered(result: OpResult | None, number: int, stores: int) -> OpResult | None:
    """With the queues as the cluster numbers them."""
    if result is None or not result.positions:
        return result
    positions = [Position(at.topic, cluster_queue(at.queue, number, stores), at.offset) for at in result.positions]
    return msgspec.structs.replace(result, positions=positions)


def joined(op: ClientOp | PrepareColumns, answers: Sequence[tuple[str, OpResult | None]]) -> OpResult | None:
    """The answers to the pieces of one operation, as one. Receipts are named as the caller named them."""
    results = [result for _, result in answers if result is not None]
    failed = [result for result in results if result.error]
    worst = next((result for result in failed if not result.stale), failed[0] if failed else None)
    if worst is None or not worst.stale:
        return worst or (results[0] if results else None)
    given = getattr(op, "receipts", ())
    stale = [
        marked if (marked := f"{store}{MARK}{one}") in given else one
        for store, result in answers
        if result is not None
        for one in result.stale
    ]
    return msgspec.structs.replace(worst, stale=stale)
