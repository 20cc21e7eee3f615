"""Steps that touch a broker, a database and the user's code, written once for sync and async.

A script is a generator: it yields what is to be done and gets back the result, or has the failure thrown into it.
What a step means is decided here, whether the caller waits on a thread or on an event loop.

`Ask` (or its two halves, `Put` and `Answer`) and `Tell` are the border between a transaction and the connection: an
operation goes out, an answer comes back. How it gets there is the connection's own business.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.barrier.runner import run_async, run_sync
from tallystick.barrier.statement import Operation
from tallystick.client.base.results import awaited, finished
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.portal import FromThreads
from tallystick.core.ops import ClientOp

T = TypeVar("T")

FindWay = Callable[[], FromThreads]
"""Finds the way from a thread onto the client's event loop, when a step needs it."""


class Ask(Struct, frozen=True):
    """An operation for one broker; its answer is waited for."""

    broker: BrokerPeer
    op: ClientOp
    timeout: float
    retry: bool = True


class Put(Struct, frozen=True):
    """An operation for one broker, whose answer is waited for later. Gives what is to be begun, and to be left if the
    answer is not waited for."""

    broker: BrokerPeer
    op: ClientOp
    timeout: float


class Answer(Struct, frozen=True):
    """The answer to what was put."""

    underway: Any


class Tell(Struct, frozen=True):
    """An operation that one broker is to hear in any case: it is retried in the background, and never raises.

    The script stays for the answer for `stay` seconds; `done` is called with the failure, or None, whenever it comes.
    """

    broker: BrokerPeer
    op: ClientOp
    timeout: float
    done: Callable[[BaseException | None], None]
    stay: float = 0.0


class OnLoop(Struct, frozen=True):
    """A coroutine function of the client; it runs on the client's event loop."""

    call: Callable[[], Awaitable[Any]]


class InDatabase(Struct, frozen=True):
    """An operation of the barrier package, in the local transaction or in one of its own."""

    operation: Operation[Any]


class WhenCommitted(Struct, frozen=True):
    """A script that is to be played once the local transaction is committed, by whomever: see `Managed`."""

    script: Callable[[], Script[None]]


class UserCode(Struct, frozen=True):
    """A function of the service, such as a handler. An awaitable that it returns is awaited on an event loop; on a
    thread it is a failure, because nothing would run it, unless `on_loop` hands it to the client's event loop."""

    call: Callable[[], Any]
    on_loop: bool = False


class Local(Enum):
    """The ends of the local transaction; the value is the adapter's method."""

    ATTACH = "attach"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


Step = Ask | Put | Answer | Tell | OnLoop | InDatabase | WhenCommitted | UserCode | Local
Script = Generator[Step, Any, T]

Watch = Callable[[Script[Any], Adapter | None], Script[Any]]
_watch: Watch | None = None


def watch_scripts(watch: Watch | None) -> None:
    """Have every script that is played from now on replaced by what `watch` makes of it; None ends that. For tests of
    services, which let a block die at one of its steps (`tallystick.testing`)."""
    global _watch
    _watch = watch


def play_sync(script: Script[T], adapter: Adapter | None, way: FindWay) -> T:
    """Play a script on the caller's thread. Without an adapter it must not touch a database."""
    if _watch is not None:
        script = _watch(script, adapter)
    try:
        return _play_sync(script, adapter, way)
    except BaseException as failure:
        if inspect.getgeneratorstate(script) == inspect.GEN_CLOSED:  # it has come to its end
            raise
        return _play_sync(script, adapter, way, failure)  # Ctrl-C between two steps: it must hear of that, too


def _play_sync(script: Script[T], adapter: Adapter | None, way: FindWay, interrupt: BaseException | None = None) -> T:
    try:
        step = next(script) if interrupt is None else script.throw(interrupt)
        while True:
            try:
                result = _do_sync(step, adapter, way)
            except BaseException as failure:
                step = script.throw(failure)
            else:
                step = script.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def play_async(script: Script[T], adapter: Adapter | None) -> T:
    """Play a script on the event loop. A synchronous connection is used right there, and blocks meanwhile."""
    if _watch is not None:
        script = _watch(script, adapter)
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
        return end.value  # type: ignore[no-any-return]


def nothing() -> Script[None]:
    """A script without a step."""
    yield from ()


def _do_sync(step: Step, adapter: Any, way: FindWay) -> Any:
    if isinstance(step, InDatabase):
        return run_sync(adapter, step.operation)
    if isinstance(step, Ask):
        return way().ask(step.broker, step.op, step.timeout, retry=step.retry)
    if isinstance(step, Put):
        return way().underway(step.broker, step.op, step.timeout)
    if isinstance(step, Answer):
        return step.underway.answer()
    if isinstance(step, Tell):
        return way().tell(step.broker, step.op, step.timeout, stay=step.stay, done=step.done)
    if isinstance(step, OnLoop):
        return way().call(step.call)
    if isinstance(step, UserCode):
        result = step.call()
        if step.on_loop and inspect.isawaitable(result):
            return way().call(lambda: awaited(result))
        return finished(result)
    if isinstance(step, WhenCommitted):
        return adapter.when_committed(lambda: play_sync(step.script(), adapter, way))
    return getattr(adapter, step._value_)()


async def _do_async(step: Step, adapter: Any) -> Any:
    if isinstance(step, InDatabase):
        if adapter.is_async:
            return await run_async(adapter, step.operation)
        return run_sync(adapter, step.operation)
    if isinstance(step, Ask):
        return await step.broker.ops.run(step.op, step.timeout, retry=step.retry)
    if isinstance(step, Put):
        return step.broker.ops.underway(step.op, step.timeout)
    if isinstance(step, Answer):
        return await step.underway.answer()
    if isinstance(step, Tell):
        return await step.broker.ops.tell(step.op, step.timeout, stay=step.stay, done=step.done)
    if isinstance(step, OnLoop):
        return await step.call()
    if isinstance(step, WhenCommitted):
        raise UnsupportedConnection("the framework of this connection works on threads, not on an event loop")
    if isinstance(step, UserCode):
        return await awaited(step.call())
    result = getattr(adapter, step._value_)()
    return await result if inspect.isawaitable(result) else result
