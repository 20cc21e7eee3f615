"""Drives an operation over a connection: the only place where steps meet I/O, once sync and once async."""

from __future__ import annotations

from typing import Any, TypeVar

from tallystick.barrier.adapters.base import Adapter, AsyncAdapter, SyncAdapter
from tallystick.barrier.errors import BarrierError, TablesMissing, TransactionOpen
from tallystick.barrier.faults import Fault, driver_error
from tallystick.barrier.statement import Begin, Operation, Result, Statement, Step, Steps

T = TypeVar("T")


def run_sync(adapter: SyncAdapter, operation: Operation[T]) -> T:
    """Run an operation to its end and return its value."""
    steps = _start(adapter, operation)
    try:
        step = next(steps)
        while True:
            try:
                result = _perform(adapter, step)
            except BaseException as error:
                step = steps.throw(_meaning(adapter, error))
            else:
                step = steps.send(result or Result())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Fault as fault:
        raise fault.original  # noqa: B904  the operation could not handle it: the driver's error is the news


async def run_async(adapter: AsyncAdapter, operation: Operation[T]) -> T:
    """The same over an async connection."""
    steps = _start(adapter, operation)
    try:
        step = next(steps)
        while True:
            try:
                result = await _perform(adapter, step)
            except BaseException as error:
                step = steps.throw(_meaning(adapter, error))
            else:
                step = steps.send(result or Result())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except Fault as fault:
        raise fault.original  # noqa: B904  as above


def _start(adapter: Adapter, operation: Operation[T]) -> Steps[T]:
    if operation.own_transaction and adapter.in_transaction:
        raise TransactionOpen
    return operation.steps(adapter.dialect, *operation.args, **operation.options)


def _perform(adapter: Adapter, step: Step) -> Any:
    if isinstance(step, Statement):
        return adapter.execute(step)
    if isinstance(step, Begin):
        return adapter.begin(step.first)
    return getattr(adapter, step._value_)()


def _meaning(adapter: Adapter, error: BaseException) -> BaseException:
    """The fault or barrier error that a driver error stands for, or the error itself."""
    kind = adapter.dialect.meaning(driver_error(error))
    if kind is None:
        return error
    if issubclass(kind, Fault):
        return kind(error)
    explained = _explain(kind, error)
    explained.__cause__ = error
    return explained


def _explain(kind: type[BarrierError], error: BaseException) -> BarrierError:
    said = str(driver_error(error)).strip()
    if kind is TablesMissing:
        return TablesMissing(
            f"a table that Tallystick needs is missing from the database ({said}); "
            "create the tables once with tallystick.barrier.create_tables(conn), or name an existing table"
        )
    return kind(f"{(kind.__doc__ or '').splitlines()[0]} The database said: {said}")
