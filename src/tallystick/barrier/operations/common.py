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


def in_transaction(begin: Sequence[Step], body: Steps[T], end: Control = Control.COMMIT) -> Steps[T]:
    """The body in a transaction of its own; whatever goes wrong, none is left open."""
    try:
        for step in begin:  # noqa: UP028  these are not a generator, and cannot be sent results
            yield step
        value = yield from body
        yield end
    except GeneratorExit:
        raise  # the runner is gone; there is nobody to roll back for us
    except BaseException:
        yield Control.ROLLBACK
        raise
    return value


def keeping_wait(sql: Dialect, body: Steps[T]) -> Steps[T]:
    """The body, after which the session waits for locks as long as it did before."""
    if sql.read_wait is None:
        return (yield from body)
    before = (yield sql.read_wait).rows[0]
    try:
        value = yield from body
    except GeneratorExit:
        raise
    except BaseException:
        yield from _restore(sql, before)
        raise
    yield from _restore(sql, before)
    return value


def _restore(sql: Dialect, settings: tuple[Any, ...]) -> Steps[None]:
    yield sql.restore_wait(settings)
    yield Control.ROLLBACK  # a connection that begins by itself is left with no transaction open


def own_transaction(sql: Dialect, body: Steps[T]) -> Steps[T]:
    """The body in a writing transaction with the default wait."""
    return keeping_wait(sql, in_transaction(sql.begin_writing(DEFAULT_WAIT), body))


def chunks(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """The values in pieces that fit into one statement."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
