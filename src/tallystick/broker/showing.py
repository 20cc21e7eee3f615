"""What a look finds, before it is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from tallystick.broker.caller import Caller
from tallystick.core.errors import StorageFailed
from tallystick.core.wire import TopicView
from tallystick.store.protocol import Store, TablePage

TABLE_LOOKS = {"op": "whole table", "calls": "whole table", "audit": "audit"}
"""Tables that not everybody who reads may read, and what a caller is asked about for them instead of `table`."""


def refuse_if_failed(store: Store) -> None:
    reason = store.failure()
    if reason is not None:
        raise StorageFailed(reason)


def visible_rows(page: TablePage, caller: Caller) -> TablePage:
    """Of a page's rows those that are for the caller's eyes. Whose a row is that names no group, nobody can tell."""
    columns = page.columns
    if caller.sees_every_row or not ("topic" in columns or "group" in columns):
        return page
    count = len(next(iter(columns.values())))
    topics, groups = columns.get("topic") or [None] * count, columns.get("group")
    named = [None] * count if groups is None else [group or "" for group in groups]
    kept = [index for index in range(count) if caller.sees_row(topics[index], named[index])]
    return TablePage({name: [column[index] for index in kept] for name, column in columns.items()}, page.next)


def present(views: Iterable[TopicView | None]) -> list[TopicView]:
    return [view for view in views if view is not None]


def position_of(views: Iterable[TopicView]) -> int:
    ends = msgspec.msgpack.encode([(view.name, view.created_at, view.ends) for view in views])
    return int.from_bytes(hashlib.blake2b(ends, digest_size=6).digest())
