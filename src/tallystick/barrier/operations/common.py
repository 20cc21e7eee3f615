"""Steps that several operations are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.faults import Duplicate
from tallystick.barrier.statement import Control, Statement, Step, Steps

T = TypeVar("T")

# Values in one `in (...)`: below every engine's limit, and few enough to be planned quickly.
_CHUNK = 500

# How long an operation of ours may wait for somebody else's lock when nobody said otherwise.
DEFAULT_WAIT = 3.0


def insert_once(statement: Statement) -> Steps[bool]:
    """Insert, and tell whether the row is new: an engine says so by its row count or by an error."""
    try:
        result = yield statement
    except Duplicate:
        return False
    return result.rowcount == 1


def own_transaction(sql: Dialect, begin: Sequence[Step], body: Steps[T], end: Control = Control.COMMIT) -> Steps[T]:
    """The body in a transaction of its own; whatever goes wrong, none is left open and no setting changed.

    Settings are put back before the end, while the session is surely still the same: a pool may hand out
    another one for the next transaction.
    """
    before: tuple[Any, ...] | None = None
    try:
        if sql.read_wait is not None:
            before = (yield sql.read_wait).rows[0]
        for step in begin:
            yield step
        for step in sql.lead():
            yield step
        value = yield from body
        yield from _restore(sql, before)
        yield end
    except GeneratorExit:
        raise  # the runner is gone; there is nobody to roll back for us
    except BaseException as error:
        try:
            yield from _restore(sql, before)
            yield Control.ROLLBACK
        except Exception as second:
            error.add_note(f"the connection could not be put back into order either: {second!r}")
        raise
    return value


def _restore(sql: Dialect, settings: tuple[Any, ...] | None) -> Steps[None]:
    if settings is not None:
        yield sql.restore_wait(settings)


def writing(sql: Dialect, body: Steps[T], wait: float = DEFAULT_WAIT) -> Steps[T]:
    """The body in a transaction that waits at most `wait` seconds for a lock."""
    return own_transaction(sql, sql.begin_writing(wait), body)


def as_text(value: str | bytes) -> str:
    """A text column, also where the service's connection returns bytes."""
    return value.decode() if isinstance(value, bytes) else value


def chunks(values: Sequence[str], size: int = _CHUNK) -> Iterator[Sequence[str]]:
    """The values in pieces that fit into one statement."""
    return (values[start : start + size] for start in range(0, len(values), size))
