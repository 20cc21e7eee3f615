"""Where handlers run: on threads of their own, or on the event loop; each with its own database connection."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.adapters.pools import arrival
from tallystick.barrier.adapters.recognition import returning_opener
from tallystick.client.base.opened_connections import OpenedConnections
from tallystick.client.base.results import runs_on_loop
from tallystick.client.base.settings import OpenConnection
from tallystick.client.base.workers import Slot, Workers
from tallystick.client.connection.portal import FromThreads
from tallystick.client.consumers.effects import ConnectionLost, Desk, HandlerAborted
from tallystick.client.consumers.failures import is_of_the_connection
from tallystick.client.consumers.subscription import Subscription
from tallystick.client.transactions.script import Script, play_async, play_sync

log = logging.getLogger("tallystick.client")

T = TypeVar("T")

CLOSE_LOOK_SECONDS = 0.01
CLOSING_SECONDS = 0.4
"""After the grace of the handlers: how long cancelled tasks and the threads of the handlers have to end."""

MakeScript = Callable[[Desk], Script[T]]
"""Makes the script of one message for the connection that it is given; one that needs none must not look at it."""

_NO_DESK = Desk(None, cast(Adapter, None))


class Lane(Protocol):
    """Plays scripts, at most `concurrency` at a time."""

    @property
    def is_current(self) -> bool:
        """Whether the caller is a handler on one of the lane's threads."""

    async def play(self, make_script: MakeScript[T]) -> T: ...

    async def close(self, timeout: float) -> None:
        """Close the connections that no handler is using, within `timeout` seconds."""


def lane_for(subscription: Subscription, turn: asyncio.Lock) -> Lane:
    """A lane for the subscription's handler; `turn` is whose turn it is to use a synchronous connection on the loop."""
    opens = None if subscription.exactly_once is None else returning_opener(subscription.exactly_once)
    if subscription.asynchronous and runs_on_loop(subscription.handler):
        return LoopLane(opens, subscription.concurrency, turn)
    return ThreadLane(opens, subscription.concurrency, subscription.name)


class ThreadLane:
    """Plain functions run on threads; each thread opens one connection and keeps it while it works."""

    def __init__(self, open_connection: OpenConnection | None, concurrency: int, name: str) -> None:
        self._open = open_connection
        self._workers = Workers(f"tallystick-{name}", concurrency)
        # For handlers that send: the broker's side of their block.
        self._way = FromThreads(asyncio.get_running_loop(), threading.current_thread())

    async def play(self, make_script: MakeScript[T]) -> T:
        return await asyncio.wrap_future(self._workers.submit(lambda slot: self._play(slot, make_script)))

    def _play(self, slot: Slot, make_script: MakeScript[T]) -> T:
        try:
            if self._open is None:
                return play_sync(make_script(_NO_DESK), None, lambda: self._way)
            desk = self._connected(slot, self._open)
            return play_sync(make_script(desk), desk.adapter, lambda: self._way)
        except ConnectionLost:
            slot.forget()
            raise
        except Exception:
            raise
        except BaseException as failure:
            raise _aborted(failure) from failure

    def _connected(self, slot: Slot, open_connection: OpenConnection) -> Desk:
        if slot.kept is None:
            self._workers.connections.check(open_connection)
            try:
                connection = open_connection()
            except Exception as failure:
                _raise_if_away(failure)
                raise
            adapter = self._workers.connections.adapt_sync(open_connection, connection)
            slot.keep(Desk(connection, adapter), adapter.close)
        kept: Desk = slot.kept
        return kept

    @property
    def is_current(self) -> bool:
        return self._workers.is_current

    async def close(self, timeout: float) -> None:
        self._workers.stop()
        # Threads close their own connections. Polled, not joined: the loop must go on meanwhile. A thread whose handler
        # is stuck closes its connection when the handler returns.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._workers.alive:  # noqa: ASYNC110 - threads know no event of the loop
                    await asyncio.sleep(CLOSE_LOOK_SECONDS)


class LoopLane:
    """Coroutine functions run on the loop.

    A synchronous connection may be used there, by one handler at a time: two could wait for each other's locks on the
    one thread that would have to release them.
    """

    def __init__(self, open_connection: OpenConnection | None, concurrency: int, turn: asyncio.Lock) -> None:
        self._open = open_connection
        self._slots = asyncio.Semaphore(concurrency)
        self._turn = turn
        self._idle: list[Desk] = []
        self._connections = OpenedConnections()

    async def play(self, make_script: MakeScript[T]) -> T:
        async with self._slots:
            if self._open is None:
                try:
                    return await play_async(make_script(_NO_DESK), None)
                except BaseException as failure:
                    _raise_unless_ours(failure)
                    raise
            desk = self._idle.pop() if self._idle else await self._connect(self._open)
            try:
                async with contextlib.nullcontext() if desk.adapter.is_async else self._turn:
                    value = await play_async(make_script(desk), desk.adapter)
            except (ConnectionLost, asyncio.CancelledError) as failure:
                await _close(desk.adapter)
                _raise_unless_ours(failure)
                raise
            except Exception:
                self._idle.append(desk)
                raise
            except BaseException as failure:
                self._idle.append(desk)
                raise _aborted(failure) from failure
            self._idle.append(desk)
            return value

    async def _connect(self, open_connection: OpenConnection) -> Desk:
        self._connections.check(open_connection)
        try:
            connection = open_connection()
            if inspect.isawaitable(connection):
                connection = await arrival(connection)
        except Exception as failure:
            _raise_if_away(failure)
            raise
        return Desk(connection, await self._connections.adapt(open_connection, connection))

    @property
    def is_current(self) -> bool:
        return False  # its handlers run in the tasks of the consumer

    async def close(self, timeout: float) -> None:
        idle, self._idle = self._idle, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                # At once: a silent server must not keep the places of the others in their pool.
                await asyncio.gather(*(_close(desk.adapter) for desk in idle))


def _raise_if_away(failure: Exception) -> None:
    """A database that is away is told in one way, whether or not there was a connection to it."""
    if is_of_the_connection(failure):
        raise ConnectionLost(f"no connection to the database: {failure}") from failure


def _aborted(failure: BaseException) -> HandlerAborted:
    return HandlerAborted(f"the handler raised {failure!r}, which is taken for a failure of this message")


def _raise_unless_ours(failure: BaseException) -> None:
    """A handler may raise what would end its task, or even the loop. Only a cancellation of the task itself does."""
    if isinstance(failure, Exception):
        return
    task = asyncio.current_task()
    if isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling():
        return
    raise _aborted(failure) from failure


async def _close(adapter: Adapter) -> None:
    """A connection that cannot be closed must not keep the others open."""
    try:
        closing = adapter.close()
        if inspect.isawaitable(closing):
            await closing
    except Exception as failure:
        log.debug("closing a connection: %s", failure)
