"""What a broker does by itself as time passes: deliver delayed messages, expire, trim."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tallystick.broker.writer import Writer
from tallystick.core.clock import Clock
from tallystick.core.errors import StorageFailed, TallystickError
from tallystick.store.protocol import (
    ExpireAudit,
    ExpireParts,
    ExpireTombstones,
    Progress,
    PromoteDelayed,
    Store,
    StoreOp,
    TrimTopics,
)

log = logging.getLogger("tallystick.broker.sweeps")

AT_ONCE = 1_000  # how much one sweep does in one group commit: enough to keep up, too little to hold others up


async def sweep(
    writer: Writer,
    clock: Clock,
    make: Callable[[], StoreOp],
    every: float,
    named: str,
    soonest: float = 0.01,
    due: Callable[[], bool] = lambda: True,
) -> None:
    """Repeat one operation: at once while there is more, when its next item is due, or after `every` seconds. While
    nothing is `due`, the writer is not asked."""
    waits = False
    while True:
        if not due():
            await asyncio.sleep(every)
            continue
        wait = every
        try:
            (progress,) = await writer.submit([make()])
            if isinstance(progress, Progress):
                if progress.more:
                    wait = 0.0
                elif progress.next_at is not None:
                    wait = min(every, max(soonest, (progress.next_at - clock.now_ms()) / 1000))
            waits = False
        except TallystickError as error:
            if not waits and not isinstance(error, StorageFailed):  # told once, not at every try; or by the writer
                log.warning("store %s: %s has to wait: %s", writer.store_id, named, error)
            waits = True
        await asyncio.sleep(wait)


async def deliver_delayed(writer: Writer) -> None:
    """What is due by now, at once instead of in the next round of the sweep."""
    more = True
    while more:
        (progress,) = await writer.submit([PromoteDelayed(AT_ONCE)])
        more = isinstance(progress, Progress) and progress.more


def start_sweeps(writer: Writer, store: Store, clock: Clock) -> list[asyncio.Task[None]]:
    delayed = asyncio.create_task(
        sweep(
            writer,
            clock,
            lambda: PromoteDelayed(AT_ONCE),
            0.2,
            "the delivery of delayed messages",
            due=lambda: store.delayed_due(clock.now_ms()),
        ),
        name="sweep PromoteDelayed",
    )
    kinds: list[tuple[str, Callable[[], StoreOp], float]] = [
        ("the removal of parts that nobody used", lambda: ExpireParts(AT_ONCE), 5.0),
        ("the removal of transactions that ended long ago", lambda: ExpireTombstones(AT_ONCE), 5.0),
        ("the removal of old lines of the audit log", lambda: ExpireAudit(AT_ONCE), 60.0),
        ("the removal of messages behind their retention", lambda: TrimTopics(AT_ONCE), 30.0),
    ]
    return [
        delayed,
        *(
            asyncio.create_task(sweep(writer, clock, make, every, named), name=f"sweep {make().__class__.__name__}")
            for named, make, every in kinds
        ),
    ]
