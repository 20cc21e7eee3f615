"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def on_a_thread(work: Callable[[], T], name: str) -> T:
    """Run blocking work on a thread of its own. The loop's executor has few, and some that hang (a dead database, a
    dead name server) would use them up; and the end of the process would wait for them."""
    answer: Future[T] = Future()

    def run() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(answer)
