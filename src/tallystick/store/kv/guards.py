"""Operations on transactions for somebody who may touch those of some producer groups only. Whose a transaction is, the
store alone knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tallystick.core.access import covers
from tallystick.core.errors import Forbidden
from tallystick.core.ops import AnswerChecks, ClientOp, Commit, PartRef, PrepareColumns, PreparePart, Rollback
from tallystick.core.transaction import Record, Resolved
from tallystick.store.kv import checks, parts
from tallystick.store.kv.batch import Batch
from tallystick.store.protocol import BrokerOp, Guarded, Result, unwrapped


def guarded(batch: Batch, op: Guarded, handlers: Mapping[type, Callable[[Batch, Any], Result]]) -> Result:
    inner = op.op
    if type(inner) is AnswerChecks:
        return checks.answer(batch, inner, op.groups)
    gid: str | None = getattr(unwrapped(inner), "gid", None)
    record = None if gid is None else batch.transaction(gid)
    if record is not None and record.group not in op.groups and not _may_touch(unwrapped(inner), record, op.groups):
        raise Forbidden(f"transaction {gid} belongs to another group", field="gid")
    if op.produces is not None:
        named = record.group if record is not None else getattr(inner, "app", "")
        _check_parts(batch, unwrapped(inner), named, op.produces)
    return handlers[type(inner)](batch, inner)


def _check_parts(
    batch: Batch, op: Any, group: str, produces: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
) -> None:
    """Whoever publishes, drops or adds to a part may do that with all it holds, in the name of this group if there is
    one."""
    allowed = [topics for groups, topics in produces if not group or covers(groups, group)]
    for part in _parts_of(op):
        if not all(any(covers(topics, topic) for topics in allowed) for topic in parts.topics_of(batch, part)):
            named = f" for group {group}" if group else ""
            detail = f"part {part} holds messages for topics that are not yours to produce to{named}"
            raise Forbidden(detail, field="parts")


def _parts_of(op: Any) -> list[str]:
    if isinstance(op, PreparePart | PrepareColumns):
        return [op.part]
    return [one.part if isinstance(one, PartRef) else one for one in op.parts]


def _may_touch(op: ClientOp | PrepareColumns | BrokerOp, record: Record, groups: tuple[str, ...]) -> bool:
    if covers(groups, record.group):
        return True
    # Nobody's: it was sent, or rolled back before it was prepared. To say so again changes nothing, and retries do.
    return isinstance(record, Resolved) and not record.group and isinstance(op, Commit | Rollback)
