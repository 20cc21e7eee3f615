"""Patience: wait for what must come about, for longer than any machine that is at work takes.

A wait that ends without it fails the test and shows what was seen last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

SECONDS = 150.0
PAUSE = 0.02

T = TypeVar("T")


def eventually(
    look: Callable[[], T],
    what: str = "",
    seconds: float = SECONDS,
    *,
    pause: float = PAUSE,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """The first true value that `look` returns. Errors that are ignored mean: not yet."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen: Any = look()
            if seen:
                return seen
        except ignoring as error:
            seen = error
        _fail_after(deadline, f"not within {seconds:g} s: {what or 'a true value'}; last seen: {seen!r}")
        time.sleep(pause)


def eventually_equal(look: Callable[[], Any], wanted: Any, seconds: float = SECONDS, *, pause: float = PAUSE) -> None:
    """Wait until `look` returns what is wanted."""
    deadline = time.monotonic() + seconds
    while (seen := look()) != wanted:
        _fail_after(deadline, f"not within {seconds:g} s: {wanted!r}; last seen: {seen!r}")
        time.sleep(pause)


async def eventually_async(look: Callable[[], Awaitable[T]], what: str = "", seconds: float = SECONDS) -> T:
    """The first true value that `look` brings, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not (seen := await look()):
        _fail_after(deadline, f"not within {seconds:g} s: {what or 'a true value'}; last seen: {seen!r}")
        await asyncio.sleep(PAUSE / 2)
    return seen


def _fail_after(deadline: float, why: str) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(why)
