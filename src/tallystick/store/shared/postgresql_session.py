"""Connections to PostgreSQL that wait for an answer, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

ANSWER_SECONDS = 60.0  # also for the deletion of some million rows, which is one statement

T = TypeVar("T")


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A server that is paused, or whose disk hangs, keeps its connections open and says nothing. Who waits for it never
    looks for the one that has taken over. Nothing is cancelled by that: a commit that waits for a synchronous standby,
    and is cancelled, would be told as done."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(_in_time(gen, ANSWER_SECONDS), *args, **kwargs)


def _in_time(answer: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """psycopg looks up several times a second while nothing comes."""
    deadline = time.monotonic() + seconds
    wanted = next(answer)
    while True:
        came = yield wanted
        if not came and time.monotonic() > deadline:
            raise psycopg.OperationalError(f"no answer within {seconds:.0f} s")
        try:
            wanted = answer.send(came)
        except StopIteration as end:
            value: T = end.value
            return value
