"""Deleting old rows of the barrier, the inbox and the prepared messages, and never one that may still be asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from tallystick.barrier.errors import TablesMissing
from tallystick.barrier.operations.clean import CleanKind, clean
from tallystick.client.base.arguments import checked_list
from tallystick.client.base.times import milliseconds
from tallystick.client.connection import questions
from tallystick.client.connection.brokers import Brokers
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.transactions.script import InDatabase, Script
from tallystick.core.errors import TallystickError
from tallystick.core.wire import BrokerInfo, GroupView

log = logging.getLogger("tallystick.client")

# Ages are differences of one clock each, so clocks need not agree; this covers the way from one to the other.
MARGIN_SECONDS = 60.0


class CleanupAges(Struct, frozen=True):
    """The age in seconds from which rows of each kind may go."""

    barrier: float
    inbox: float
    prepared: float


async def plan(brokers: Brokers, older_than: float, groups: Sequence[str] | None, timeout: float) -> CleanupAges:
    """Ask every broker what it may still need. One that cannot be asked may need anything."""
    if groups is not None:
        groups = checked_list(groups, str, "groups", "Give the names of consumer groups.")
    milliseconds(older_than, "older_than")  # with NaN, every row would count as old enough
    await brokers.look()
    needs = await asyncio.gather(*(_needs(broker, groups, timeout) for broker in brokers))
    barrier = max(older_than, *(need.barrier for need in needs))
    inbox = max(older_than, *(need.inbox for need in needs))
    prepared = max(older_than, *(need.prepared for need in needs))
    log.info("clean-up: barrier rows older than %.0f s, inbox rows older than %.0f s", barrier, inbox)
    return CleanupAges(barrier, inbox, prepared)


async def _needs(broker: BrokerPeer, groups: Sequence[str] | None, timeout: float) -> CleanupAges:
    try:
        info = await broker.info(timeout)
        views = await questions.groups(broker, timeout)
    except TallystickError as error:
        raise TallystickError(
            f"nothing was cleaned: {broker.address} cannot be asked which transactions it still has open ({error}); "
            "try again when it is back, or take it out of the client's addresses if it is gone for good"
        ) from error
    remembered = info.dedup_retention_ms / 1000
    pending = _age(info, info.oldest_pending_at)
    unsettled = max((_age(info, oldest) for oldest in _oldest(views, groups)), default=0.0)
    needed = max(remembered, unsettled)
    return CleanupAges(max(remembered, pending), needed, needed)


def _oldest(views: list[GroupView], groups: Sequence[str] | None) -> list[int | None]:
    return [view.oldest_unsettled_at for view in views if groups is None or view.group in groups]


def _age(info: BrokerInfo, at: int | None) -> float:
    """How old something is by the broker's own clock, in seconds; 0 for nothing."""
    return 0.0 if at is None else max(0.0, (info.now_ms - at) / 1000) + MARGIN_SECONDS


def carry_out(ages: CleanupAges, barrier_table: str) -> Script[dict[str, int]]:
    """Delete by the plan; how many rows of each kind went."""
    deleted: dict[str, int] = {}
    kinds: tuple[tuple[CleanKind, float, str | None], ...] = (
        ("barrier", ages.barrier, barrier_table),
        ("inbox", ages.inbox, None),
        ("prepared", ages.prepared, None),
    )
    for kind, age, table in kinds:
        deleted[kind] = yield InDatabase(clean(kind, older_than=age, table=table))
    # A database that was made before there were digests keeps none.
    with suppress(TablesMissing):
        # As old as inbox rows: the two are compared with the same messages.
        deleted["digest"] = yield InDatabase(clean("digest", older_than=ages.inbox))
    return deleted
