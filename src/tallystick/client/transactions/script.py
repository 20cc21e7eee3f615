"""Steps that touch a broker, a database and the user's code, written once for sync and async.

A script is a generator: it yields what is to be done and gets back the result, or has the failure thrown into it.
What a step means is decided here, whether the caller waits on a thread or on an event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, cast

from tallystick.barrier.adapters.base import Adapter, SyncAdapter
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation

T = TypeVar("T")

CallOnLoop = Callable[[Callable[[], Awaitable[Any]]], Any]


@dataclass(frozen=True, slots=True)
class OnBroker:
    """A coroutine function of the client; it runs on the client's event loop."""

    call: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class InDatabase:
    """An operation of the barrier package, in the local transaction or in one of its own."""

    operation: Operation[Any]


@dataclass(frozen=True, slots=True)
class UserCode:
    """A handler; with an asynchronous client it may return an awaitable."""

    call: Callable[[], Any]


class Local(Enum):
    """The ends of the local transaction; the value is the adapter's method."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


Step = OnBroker | InDatabase | UserCode | Local
Script = Generator[Step, Any, T]


def play_sync(script: Script[T], adapter: Adapter | None, call_on_loop: CallOnLoop) -> T:
    """Play a script on the caller's thread. Without an adapter it must not touch a database."""
    database = cast(SyncAdapter, adapter)
    try:
        step = next(script)
        while True:
            try:
                result = _do_sync(step, database, call_on_loop)
            except BaseException as failure:
                step = script.throw(failure)
            else:
                step = script.send(result)
    except StopIteration as end:
        return cast(T, end.value)


async def play_async(script: Script[T], given: Adapter | None) -> T:
    """Play a script on the event loop. A synchronous connection is used right there, and blocks meanwhile."""
    adapter = cast(Adapter, given)
    try:
        step = next(script)
        while True:
            try:
                result = await _do_async(step, adapter)
            except BaseException as failure:
                step = script.throw(failure)
            else:
                step = script.send(result)
    except StopIteration as end:
        return cast(T, end.value)


def _do_sync(step: Step, adapter: SyncAdapter, call_on_loop: CallOnLoop) -> Any:
    if isinstance(step, InDatabase):
        return run_sync(adapter, step.operation)
    if isinstance(step, OnBroker):
        return call_on_loop(step.call)
    if isinstance(step, UserCode):
        return step.call()
    return getattr(adapter, step.value)()


async def _do_async(step: Step, adapter: Adapter) -> Any:
    if isinstance(step, InDatabase):
        if adapter.is_async:
            return await run_async(adapter, step.operation)
        return run_sync(adapter, step.operation)
    if isinstance(step, OnBroker):
        return await step.call()
    result = step.call() if isinstance(step, UserCode) else getattr(adapter, step.value)()
    return await result if inspect.isawaitable(result) else result
