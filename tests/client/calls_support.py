"""One block with calls, for tests that look at how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from client_support import Bank

import tallystick


def pay_by_call(
    ts: tallystick.Client,
    bank: Bank,
    calls: Sequence[str],
    *,
    body: Any = 1,
    fail: Exception | None = None,
    wait: bool | float | None = None,
    after_commit: Exception | None = None,
    **options: Any,
) -> None:
    """A note in the ledger and calls of URLs; then a failure, or a commit inside the block if `wait` is given."""
    with bank.connection() as connection, ts.transaction(connection, **{"wait": True, **options}) as tx:
        bank.note(connection, "paid")
        for url in calls:
            tx.call(url, body)
        if fail is not None:
            raise fail
        if wait is not None:
            tx.commit(wait=wait)
        if after_commit is not None:
            raise after_commit


async def pay_by_call_async(
    ts: tallystick.AsyncClient, bank: Bank, calls: Sequence[str], *, wait: bool | float, **options: Any
) -> None:
    with contextlib.closing(bank.open()) as connection:
        async with ts.transaction(connection, **{"wait": True, **options}) as tx:
            bank.note(connection, "paid")
            for url in calls:
                tx.call(url, 1)
            await tx.commit(wait=wait)
