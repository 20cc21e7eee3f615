"""Connections to PostgreSQL that do not wait for ever."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from tallystick.extras import need

need("postgresql")

import psycopg  # noqa: E402 - where it is missing, the line above has said what to install
from psycopg.abc import PQGen  # noqa: E402

ANSWER_SECONDS = 60.0  # also for the deletion of some million rows, which is one statement

T = TypeVar("T")


class PostgresqlSession(psycopg.Connection[tuple[Any, ...]]):
    """Gives up what is not answered: libpq itself would wait as long as the server's machine takes packets. Nothing is
    cancelled by that: a commit that waits for a standby, and is cancelled, would be told as done."""

    def wait(self, gen: PQGen[T], *options: Any, **named: Any) -> T:
        return super().wait(_in_time(gen), *options, **named)


def _in_time(asking: PQGen[T]) -> PQGen[T]:
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        wanted = next(asking)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer for {ANSWER_SECONDS:g} s")
            wanted = asking.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
