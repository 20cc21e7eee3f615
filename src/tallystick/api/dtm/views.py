"""Transactions, branches and topics as dtm shows them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from tallystick.api.dtm.states import Known, known
from tallystick.api.dtm.translate import GROUP, Options, Remark, read_remark, shown_url
from tallystick.core.calls import CallTopicView, CallView
from tallystick.store.protocol import Store

EXAMINED_PER_PAGE = 1_000  # a page that filters much away ends early instead of holding the writer up
_ZERO_ID = 0  # dtm's number of a row; its own stores without one show 0


class Transaction(Struct, omit_defaults=True):
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


class Branch(Struct, omit_defaults=True):
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


def transaction_view(found: Known, now: int) -> dict[str, object]:
    transaction, calls, status = found.transaction, found.calls, found.status
    remark = read_remark(calls.remark) if calls else Remark()
    over = max(transaction.resolved_at, calls.finished_at if calls else 0)
    next_at = _next_at(found)
    shown = Transaction(
        time_text(transaction.created_at),
        time_text(max(transaction.created_at, over)),
        transaction.gid,
        "msg",
        status,
        remark.query_prepared or transaction.check_target,
        remark.protocol or "http",
        time_text(over) if status == "succeed" else "",
        time_text(over) if status == "failed" else "",
        msgspec.json.encode(remark.options).decode() if remark.options != Options() else "",
        remark.custom_data,
        max(1, (next_at - now) // 1000) if next_at else 0,
        time_text(next_at),
    )
    return {"id": _ZERO_ID, **_filled(shown), "concurrent": bool(calls and calls.concurrent)}


def _filled(shown: Struct) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(shown).items() if value}


def _next_at(found: Known) -> int:
    """When the broker will do something for it by itself."""
    if found.finished:
        return 0
    if found.status == "prepared" or found.calls is None:
        return found.transaction.next_check_at
    return min((call.next_at for call in found.calls.calls if call.next_at), default=0)


def branch_view(call: CallView, body: bytes) -> dict[str, object]:
    shown = Branch(
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


def query(store: Store, gid: str, now: int, most_bytes: int) -> dict[str, object]:
    """One transaction with its branches. Bodies beyond `most_bytes` together are left out of the answer."""
    found = known(store, gid)
    branches = []
    for call in found.calls.calls if found and found.calls else ():
        most_bytes -= call.size
        body = store.call_body(gid, call.index) if call.size and most_bytes >= 0 else b""
        branches.append(branch_view(call, body))
    return {"transaction": transaction_view(found, now) if found else None, "branches": branches}


class Wanted(Struct, frozen=True):
    """What a list of transactions is asked for."""

    gid: str = ""
    status: str = ""
    created_from: int = 0
    created_to: int = 0
    position: str = ""
    limit: int = 100

    def takes(self, found: Known) -> bool:
        created = found.transaction.created_at
        return (
            (found.calls is not None or found.transaction.group == GROUP)
            and self.status in ("", found.status)
            and created >= self.created_from
            and (not self.created_to or created <= self.created_to)
        )


def all_transactions(store: Store, wanted: Wanted, now: int) -> dict[str, object]:
    """A page: first what is prepared, then what has an outcome, newest first."""
    if wanted.gid:
        one = known(store, wanted.gid)
        found, position = [one] if one and wanted.takes(one) else [], ""
    else:
        found, position = _page(store, wanted)
    return {"transactions": [transaction_view(one, now) for one in found], "next_position": position}


def _page(store: Store, wanted: Wanted) -> tuple[list[Known], str]:
    state = "committed" if wanted.status in ("submitted", "succeed") else None
    place = wanted.position or None
    found: list[Known] = []
    examined = 0
    while True:
        views, place = store.scan(state, None, place, wanted.limit - len(found))
        for view in views:
            one = Known(view, store.calls(view.gid) if view.calls else None)
            if wanted.takes(one):
                found.append(one)
        examined += max(1, len(views))
        if place is None or (wanted.status == "prepared" and views and views[-1].resolved_at):
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


def topics(store: Store, category: str, key: str) -> list[dict[str, object]]:
    """dtm keeps pairs of several categories; here there are topics only."""
    if category != "topics":
        return []
    numbered = enumerate(store.call_topics(), 1)
    return [topic_view(number, topic) for number, topic in numbered if key in ("", topic.topic)]


def scan_topics(store: Store, category: str, position: str, limit: int) -> dict[str, object]:
    """A page in the order of names; the position is the last name of the page before."""
    left = [one for one in topics(store, category, "") if str(one["k"]) > position]
    more = len(left) > limit
    return {"kv": left[:limit], "next_position": left[limit - 1]["k"] if more else ""}
