"""Which rule carries out which operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tallystick.core import ops
from tallystick.store import protocol
from tallystick.store.kv import (
    audit,
    call_topics,
    calls,
    checks,
    delayed,
    due_now,
    guards,
    leases,
    ledger,
    offsets,
    parts,
    tokens,
    tombstones,
    topics,
    transactions,
)
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.reader import QueueReader
from tallystick.store.protocol import Result

Handler = Callable[[Batch, Any], Result]


def handlers(reader: QueueReader) -> dict[type, Handler]:
    known: dict[type, Handler] = {
        ops.Prepare: transactions.prepare,
        ops.Commit: transactions.commit,
        ops.Rollback: transactions.rollback,
        ops.Send: transactions.send,
        ops.PreparePart: parts.prepare,
        ops.PrepareColumns: parts.prepare_columns,
        ops.DropParts: parts.drop,
        ops.CommitBatch: ledger.commit,
        ops.Ack: leases.ack,
        ops.Nack: partial(leases.nack, reader=reader),
        ops.Renew: leases.renew,
        ops.CommitOffsets: offsets.commit,
        ops.AnswerChecks: checks.answer,
        protocol.PutTopic: topics.put,
        protocol.DeleteTopic: topics.delete,
        protocol.ClaimChecks: checks.claim,
        protocol.FailChecks: checks.fail,
        protocol.ParkOld: checks.park_old,
        protocol.Resume: checks.resume,
        protocol.OperatorResolve: transactions.operator_resolve,
        protocol.Receive: partial(leases.receive, reader=reader),
        protocol.ResetGroup: partial(offsets.reset, reader=reader),
        protocol.PromoteDelayed: delayed.promote,
        protocol.ExpireParts: parts.expire,
        protocol.ExpireTombstones: tombstones.expire,
        protocol.TrimTopics: topics.trim,
        protocol.TrimTo: topics.trim_to,
        protocol.ForgetApp: ledger.forget,
        protocol.ClaimCalls: calls.claim,
        protocol.FinishCalls: calls.finish,
        protocol.RequeueCalls: calls.requeue,
        protocol.ResumeCalls: calls.resume,
        protocol.StopCalls: calls.stop,
        protocol.Hurry: due_now.one,
        protocol.HurryAll: due_now.all_of_them,
        protocol.Subscribe: call_topics.subscribe,
        protocol.Unsubscribe: call_topics.unsubscribe,
        protocol.DropCallTopic: call_topics.drop,
        protocol.PutToken: tokens.put,
        protocol.DropToken: tokens.drop,
        protocol.ExpireAudit: audit.expire,
    }
    known[protocol.Guarded] = partial(guards.guarded, handlers=known)
    known[protocol.Audited] = partial(audit.audited, handlers=known)
    return known
