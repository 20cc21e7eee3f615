"""Waiting until each call of a transaction has been answered for the first time."""

from __future__ import annotations

import asyncio

from tallystick.client import reading
from tallystick.client.brokers import Broker
from tallystick.client.calls import CallsNotFinished
from tallystick.core.calls import CallsView, first_pass_over
from tallystick.core.errors import NotFound, TallystickError

ONE_WAIT_SECONDS = 60.0
"""The longest that a broker keeps one request waiting."""
MARGIN_SECONDS = 2.0
"""How much longer than that a request may take before its answer counts as lost."""
PAUSE_SECONDS = 0.1


async def wait_for_calls(broker: Broker, gid: str, seconds: float, *, surely_there: bool = True) -> None:
    """Wait for the first pass over the calls of a committed transaction; raises `CallsNotFinished` if not all are done.

    `surely_there`: the transaction has calls, so a broker that has not heard of them will. Otherwise there is nothing
    to wait for in that case.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    view: CallsView | None = None
    reason = ""
    while (left := deadline - loop.time()) > 0:
        try:
            view = await reading.calls(broker, gid, min(left, ONE_WAIT_SECONDS), MARGIN_SECONDS)
            reason = ""
        except TallystickError as error:
            if isinstance(error, NotFound) and not surely_there:
                return
            if not (error.retryable or isinstance(error, NotFound)):
                raise CallsNotFinished(gid, view, f"the broker cannot be asked: {error}") from error
            reason = f"the broker was last asked in vain: {error}"
        else:
            if view.state == "done":
                return
            # Not while the commit is still on its way to the broker: then nothing can have been tried.
            if first_pass_over(view):
                raise CallsNotFinished(gid, view)
        await asyncio.sleep(min(PAUSE_SECONDS, max(0.0, deadline - loop.time())))
    raise CallsNotFinished(gid, view, reason or f"the wait of {seconds:g} s is over")
