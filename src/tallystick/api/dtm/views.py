"""Transactions, branches and topics as dtm shows them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from tallystick.api.dtm.states import finished, status_of
from tallystick.api.dtm.translate import DtmOptions, DtmRemark, read_remark, shown_url
from tallystick.broker.door import BrokerDoor, Whole
from tallystick.core.calls import CallTopicView, CallView
from tallystick.core.dtm_mark import DTM_GROUP

EXAMINED_PER_PAGE = 1_000  # a page that filters much away ends early instead of keeping the caller
NOT_FOUND: dict[str, object] = {"transaction": None, "branches": []}
_ZERO_ID = 0  # dtm's number of a row; its own stores without one show 0


class TransactionRow(Struct, omit_defaults=True):
    """dtm's keys; empty ones are left out, except the first three and the last."""

    create_time: str
    update_time: str
    gid: str
    trans_type: str
    status: str
    query_prepared: str = ""
    protocol: str = ""
    finish_time: str = ""
    rollback_time: str = ""
    options: str = ""
    custom_data: str = ""
    next_cron_interval: int = 0
    next_cron_time: str = ""


class BranchRow(Struct, omit_defaults=True):
    """dtm's keys, and three that it has not: how often it was called, what came of it, and when it is next."""

    create_time: str
    update_time: str
    gid: str
    url: str
    branch_id: str
    op: str
    status: str
    bin_data: bytes = b""
    finish_time: str = ""
    attempts: int = 0
    last_error: str = ""
    next_time: str = ""


def time_text(ms: int) -> str:
    """RFC 3339 with an offset; nothing for a time that has not come."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if ms else ""


# --- transactions ------------------------------------------------------------------------------------------------


def transaction_view(found: Whole, now: int) -> dict[str, object]:
    transaction, calls, status = found.transaction, found.calls, status_of(found)
    remark = read_remark(calls.remark) if calls else DtmRemark()
    over = max(transaction.resolved_at, calls.finished_at if calls else 0)
    next_at = _next_at(found)
    shown = TransactionRow(
        time_text(transaction.created_at),
        time_text(max(transaction.created_at, over)),
        transaction.gid,
        "msg",
        status,
        remark.query_prepared or transaction.check_target,
        remark.protocol or "http",
        time_text(over) if status == "succeed" else "",
        time_text(over) if status == "failed" else "",
        msgspec.json.encode(remark.options).decode() if remark.options != DtmOptions() else "",
        remark.custom_data,
        max(1, math.ceil((next_at - now) / 1000)) if next_at else 0,
        time_text(next_at),
    )
    return {"id": _ZERO_ID, **_filled(shown), "concurrent": bool(calls and calls.concurrent)}


def _filled(shown: Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(shown).items() if value}


def _next_at(found: Whole) -> int:
    """When the broker will do something for it by itself."""
    if finished(found):
        return 0
    if status_of(found) == "prepared" or found.calls is None:
        return found.transaction.next_check_at
    return min((call.next_at for call in found.calls.calls if call.next_at), default=0)


def branch_view(call: CallView, body: bytes) -> dict[str, object]:
    shown = BranchRow(
        time_text(call.created_at),
        time_text(max(call.created_at, call.finished_at)),
        call.gid,
        shown_url(call.url),
        call.branch,
        "action",
        "succeed" if call.state == "done" else "prepared",
        body,
        time_text(call.finished_at) if call.state == "done" else "",
        call.attempts,
        call.last_error,
        time_text(call.next_at),
    )
    return {"id": _ZERO_ID, **_filled(shown)}


async def query(door: BrokerDoor, gid: str) -> dict[str, object]:
    """One transaction with its branches. Bodies beyond what a request may hold are left out of the answer."""
    found = await door.whole(gid, door.limits.request_bytes)
    if found is None:
        return NOT_FOUND
    calls = found.calls.calls if found.calls else []
    branches = [branch_view(call, body) for call, body in zip(calls, found.bodies, strict=True)]
    return {"transaction": transaction_view(found, door.now_ms()), "branches": branches}


class Wanted(Struct, frozen=True):
    """What a list of transactions is asked for."""

    gid: str = ""
    status: str = ""
    created_from: int = 0
    created_to: int = 0
    position: str = ""
    limit: int = 100

    def takes(self, found: Whole) -> bool:
        created = found.transaction.created_at
        return (
            (found.calls is not None or found.transaction.group == DTM_GROUP)
            and self.status in ("", status_of(found))
            and created >= self.created_from
            and (not self.created_to or created <= self.created_to)
        )


async def all_transactions(door: BrokerDoor, wanted: Wanted) -> dict[str, object]:
    """A page: first what is prepared, then what has an outcome, newest first."""
    if wanted.gid:
        one = await door.whole(wanted.gid)
        found, position = [one] if one and wanted.takes(one) else [], ""
    else:
        found, position = await _page(door, wanted)
    now = door.now_ms()
    return {"transactions": [transaction_view(one, now) for one in found], "next_position": position}


async def _page(door: BrokerDoor, wanted: Wanted) -> tuple[list[Whole], str]:
    state = "committed" if wanted.status in ("submitted", "succeed") else None
    place = wanted.position or None
    found: list[Whole] = []
    examined = 0
    while True:
        seen, place = await door.wholes(state, place, wanted.limit - len(found))
        found += [one for one in seen if wanted.takes(one)]
        examined += max(1, len(seen))
        if place is None or (wanted.status == "prepared" and seen and seen[-1].transaction.resolved_at):
            return found, ""
        if len(found) >= wanted.limit or examined >= EXAMINED_PER_PAGE:
            return found, place


# --- topics ------------------------------------------------------------------------------------------------------


def topic_view(number: int, topic: CallTopicView) -> dict[str, object]:
    subscribers = [{"url": shown_url(one.url), "remark": one.remark} for one in topic.subscribers]
    return {
        "id": number,
        "create_time": time_text(topic.created_at),
        "update_time": time_text(topic.updated_at),
        "cat": "topics",
        "k": topic.topic,
        "v": msgspec.json.encode(subscribers).decode(),
        "version": topic.version,
    }


async def topics(door: BrokerDoor, category: str, key: str) -> list[dict[str, object]]:
    """dtm keeps pairs of several categories; here there are topics only."""
    if category != "topics":
        return []
    numbered = enumerate(await door.call_topics(), 1)
    return [topic_view(number, topic) for number, topic in numbered if key in ("", topic.topic)]


async def scan_topics(door: BrokerDoor, category: str, position: str, limit: int) -> dict[str, object]:
    """A page in the order of names; the position is the last name of the page before."""
    left = [one for one in await topics(door, category, "") if str(one["k"]) > position]
    more = len(left) > limit
    return {"kv": left[:limit], "next_position": left[limit - 1]["k"] if more else ""}
