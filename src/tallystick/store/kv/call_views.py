"""What people and programs see of calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tallystick.core.calls import CallSpec, CallState, CallsView, CallView, OutgoingCall, state_of_all
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.transaction import Prepared, Resolved
from tallystick.store.kv import keys, views
from tallystick.store.kv.batch import Batch, Look
from tallystick.store.kv.call_records import CallProgress, CallsState

_PUBLIC: dict[str, CallState] = {
    "behind": "waiting",
    "waiting": "waiting",
    "leased": "waiting",
    "done": "done",
    "parked": "parked",
    "stopped": "stopped",
}


def of_transaction(batch: Batch, gid: str) -> CallsView | None:
    record = batch.transaction(gid)
    if isinstance(record, Prepared):
        return None if record.pushed is None or not record.pushed.calls else _held(batch, gid, record, record.pushed)
    if record is None or not record.calls:
        return None
    return _settled(batch, gid, record)


def _held(batch: Batch, gid: str, record: Prepared, spec: CallSpec) -> CallsView:
    shown = [call_view(gid, index, call, "held", record.created_at) for index, call in enumerate(spec.calls)]
    transaction = views.transaction(batch, gid)
    return CallsView(
        gid,
        transaction.state if transaction else "prepared",
        "held",
        shown,
        spec.concurrent,
        spec.remark,
        record.target,
        record.created_at,
    )


def _settled(batch: Batch, gid: str, record: Resolved) -> CallsView:
    stored = batch.calls_record(gid)
    state = batch.calls_state(gid)
    shown = [
        call_view(gid, index, call, "dropped", record.created_at, state) for index, call in enumerate(stored.spec.calls)
    ]
    return CallsView(
        gid,
        record.outcome,
        state_of_all([one.state for one in shown]),
        shown,
        stored.spec.concurrent,
        stored.spec.remark,
        stored.check_target,
        record.created_at,
        record.resolved_at,
        state.finished_at if state else 0,
    )


def call_view(
    gid: str, index: int, call: OutgoingCall, otherwise: CallState, created_at: int, state: CallsState | None = None
) -> CallView:
    progress = state.calls[index] if state and state.calls else CallProgress(0)
    return CallView(
        gid,
        index,
        call.branch,
        call.url,
        call.protocol,
        _PUBLIC[progress.state] if state and state.calls else otherwise,
        progress.attempts,
        progress.next_at if progress.state in ("waiting", "leased") else 0,
        progress.last_error,
        progress.finished_at,
        len(call.body),
        created_at,
        progress.last_outcome,
    )


def body(batch: Batch, gid: str, index: int) -> bytes:
    record = batch.transaction(gid)
    pushed = record.pushed if isinstance(record, Prepared) else None
    spec = pushed or batch.calls_record(gid).spec
    if not 0 <= index < len(spec.calls):
        raise NotFound(f"transaction {gid} has {len(spec.calls)} calls, there is no call {index}", field="index")
    return spec.calls[index].body


# --- lists -------------------------------------------------------------------------------------------------------

_WAITING = (keys.DUE_CALL, keys.LEASED_CALL)
_PARKED = (keys.PARKED_CALL,)
_TOKEN = re.compile(r"(?:[0-9a-f]{2}){2,}\Z")


def scan(batch: Batch, state: str | None, after: str | None, limit: int) -> tuple[list[CallView], str | None]:
    """A page of calls in line, under lease or parked, and where the next begins. One that is behind another of its
    transaction is not in line."""
    kinds: dict[str, tuple[keys.OfCall, ...]] = {"waiting": _WAITING, "parked": _PARKED}
    found: list[CallView] = []
    listed = _listed(batch, kinds.get(state or "", (*_PARKED, *_WAITING)), after)
    for kind, key in batch.foreseeing_for(listed, _looks):
        view = _view_at(batch, *kind.call(key))
        if view is not None:
            found.append(view)
        if len(found) >= limit:
            return found, key.hex()
    return found, None


def _listed(batch: Batch, kinds: tuple[keys.OfCall, ...], after: str | None) -> Iterator[tuple[keys.OfCall, bytes]]:
    """The keys of these kinds, one kind after the other, behind the one that an earlier page ended with."""
    first, start = 0, b""
    if after is not None:
        start = bytes.fromhex(after) if _TOKEN.match(after) else b""
        first = next((number for number, kind in enumerate(kinds) if kind.holds(start)), -1)
        if first < 0:
            raise InvalidRequest(f"after: {after[:80]!r} is not the `next` of an earlier page", field="after")
    for number, kind in enumerate(kinds[first:]):
        low, high = kind.all
        for key, _ in batch.scan("index", keys.behind(start) if start and number == 0 else low, high):
            yield kind, key


def _looks(listed: tuple[keys.OfCall, bytes]) -> list[Look]:
    gid, _ = listed[0].call(listed[1])
    return [("index", keys.CALLS_STATE.key(gid)), ("tx", keys.CALLS.key(gid))]


def _view_at(batch: Batch, gid: str, index: int) -> CallView | None:
    state = batch.calls_state(gid)
    if state is None:
        return None
    return call_view(gid, index, batch.calls_record(gid).spec.calls[index], "dropped", state.created_at, state)
