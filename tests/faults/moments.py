"""Numbered moments of a process at which it can be killed or stopped, found by running it and not by listing them.

The client plays scripts of steps. Here every step gets a moment before and one after it, every request to the broker
one while it is in flight and one when its answer is there but nobody has seen it, every COMMIT one while the database
server is at it. A run that passes all moments tells their names; then each can be chosen by its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import msgspec
from pymysql.constants import COMMAND

from tallystick.client.connection import questions
from tallystick.client.connection.exchange import RequestHead
from tallystick.client.connection.loop_wire import LoopWire, LoopWireConnection
from tallystick.client.connection.wire import WireConnection
from tallystick.client.consumers import lanes
from tallystick.client.transactions import outbox
from tallystick.client.transactions import transaction as transactions
from tallystick.client.transactions.script import InDatabase, Local, UserCode

# Requests that a process makes in the background, at no fixed place between the others.
_BACKGROUND = {"answers", "renew", "offsets"}
_written: ContextVar[asyncio.Event | None] = ContextVar("written", default=None)
# How many turns of the event loop it takes, at most, until a written request has been given to the kernel.
_TURNS_TO_SEND = 5


# What belongs to every transaction, whatever it is for.
_STATEMENTS = {
    "begin_tied": "local begin",
    "require_tied": "proof",
    "mark_committed_here": "mark",
    "outbox_put_here": "put",
    "whereabouts": "whereabouts",
}


class Moments:
    """Counts the moments that pass, and acts at one of them; `at` 0 only counts. With a `name` it acts only if that is
    what it has come to: a block that a check-back overtook passes other moments."""

    def __init__(self, at: int = 0, signal_number: int = signal.SIGKILL, name: str | None = None) -> None:
        self.at, self._name = at, name
        self.passed: list[str] = []
        self._signal = signal_number
        self.asleep = False
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        if self._next(name):
            self._act()

    def reach_with(self, name: str, prepare: Callable[[], None]) -> None:
        """A moment that has to be brought about, and after which the process cannot go on."""
        if self._next(name) and self._signal == signal.SIGKILL:
            prepare()
            self._act()

    async def reach_in_flight(self, name: str, written: asyncio.Event) -> None:
        if self._next(name):
            await written.wait()
            for _ in range(_TURNS_TO_SEND):
                await asyncio.sleep(0)
            self._act()

    def _next(self, name: str) -> bool:
        with self._lock:
            if self.asleep:
                return False
            self.passed.append(name)
            return len(self.passed) == self.at and self._name in (None, name)

    def _act(self) -> None:
        # To this thread, which takes it before it goes on; another one would stop the process some steps later.
        signal.pthread_kill(threading.get_ident(), self._signal)
        while self._signal == signal.SIGKILL:
            time.sleep(1)  # nothing runs after a kill


def install(moments: Moments) -> None:
    """Have the client of this process pass through `moments`."""
    for module, play in ((transactions, "play_sync"), (transactions, "play_async"), (lanes, "play_sync")):
        setattr(module, play, _watching(getattr(module, play), moments))
    LoopWire.post = _post(LoopWire.post, moments)
    LoopWireConnection.ask = _telling(LoopWireConnection.ask)
    _watch_wire(moments)
    questions.receive = _noticing(questions.receive, lambda messages: messages, "received", moments)
    questions.fetch = _noticing(questions.fetch, lambda fetched: fetched.messages, "fetched", moments)
    _watch_outbox(moments)


# Steps of scripts


def _watching(play: Any, moments: Moments) -> Any:
    return lambda script, adapter, *rest: play(_watched(script, adapter, moments), adapter, *rest)


def _watched(script: Any, adapter: Any, moments: Moments) -> Generator[Any, Any, Any]:
    try:
        step = next(script)
        while True:
            name = _name(step)
            moments.reach(f"before {name}")
            if step is Local.COMMIT and adapter.dialect.name != "sqlite":
                moments.reach_with("local commit in flight", functools.partial(_send_commit, adapter))
            try:
                result = yield step
            except BaseException as failure:
                moments.reach(f"failed {name}")
                step = script.throw(failure)
            else:
                moments.reach(f"after {name}")
                step = script.send(result)
    except StopIteration as end:
        return end.value


def _name(step: Any) -> str:
    if isinstance(step, Local):
        return f"local {step.value}"
    if isinstance(step, InDatabase):
        return _STATEMENTS.get(step.operation.name, "statement")
    return "handler" if isinstance(step, UserCode) else "broker"


def _send_commit(adapter: Any) -> None:
    """Give COMMIT to the server and do not wait for its answer."""
    driver = adapter._connection
    if hasattr(driver, "pgconn"):
        driver.pgconn.send_query(b"commit")
        driver.pgconn.flush()
    elif adapter.dialect.name == "postgresql":  # the drivers that cannot send without waiting: what they would send
        socket = driver._transport.get_extra_info("socket") if adapter.is_async else driver
        os.write(socket.fileno(), b"Q\x00\x00\x00\x0bcommit\x00")
    elif hasattr(driver, "send_query"):  # mysqlclient
        driver.send_query(b"COMMIT")
    elif hasattr(driver, "_socket"):  # mysql.connector
        driver._socket.send(driver._protocol.make_command(COMMAND.COM_QUERY, b"COMMIT"), 0, 0)
    else:
        sent = driver._execute_command(COMMAND.COM_QUERY, "COMMIT")
        if sent is not None:  # aiomysql, asyncmy: it does not wait before it is written
            with contextlib.suppress(StopIteration):
                sent.send(None)


# Requests


def _telling(ask: Any) -> Any:
    """A connection that tells when a request was written."""

    def asked(self: LoopWireConnection, head: RequestHead, body: bytes) -> Any:
        answer = ask(self, head, body)
        event = _written.get()
        if event is not None:
            event.set()
        return answer

    return asked


def _post(post: Any, moments: Moments) -> Any:
    async def watched(self: LoopWire, body: bytes, timeout: float) -> bytes:
        name, written = _kinds(body), asyncio.Event()
        if not name:
            return await post(self, body, timeout)
        _written.set(written)
        request = asyncio.get_running_loop().create_task(post(self, body, timeout))
        await moments.reach_in_flight(f"{name} request in flight", written)
        answer = await request
        moments.reach(f"{name} request answered")
        return answer

    return watched


def _kinds(body: bytes) -> str:
    return "+".join(sorted({op["op"] for op in msgspec.msgpack.decode(body)["ops"]} - _BACKGROUND))


def _watch_wire(moments: Moments) -> None:
    """Requests that a thread sends by itself."""
    send, receive = WireConnection.send, WireConnection.receive
    sent: dict[WireConnection, str] = {}

    def watched_send(self: WireConnection, head: RequestHead, body: bytes, seconds: float) -> None:
        sent[self] = _kinds(body)
        send(self, head, body, seconds)

    def watched_receive(self: WireConnection) -> Any:
        moments.reach(f"{sent[self]} request in flight")
        answer = receive(self)
        moments.reach(f"{sent[self]} request answered")
        return answer

    WireConnection.send, WireConnection.receive = watched_send, watched_receive


def _noticing(read: Any, messages_of: Callable[[Any], Any], name: str, moments: Moments) -> Any:
    """A question that is a moment when it brought messages."""

    async def watched(*args: Any) -> Any:
        answer = await read(*args)
        if messages_of(answer):
            moments.reach(name)
        return answer

    return watched


def _watch_outbox(moments: Moments) -> None:
    """Moments around the deletion of confirmed rows. This process does not look for rows of others: stopped in the
    middle of such a look it would keep SQLite's lock, and nobody else could be seen to look after its own."""
    run_on_new, outbox_delete = outbox.run_on_new, outbox.outbox_delete
    deletions: list[Any] = []

    def remembered(gids: list[str]) -> Any:
        deletions.append(outbox_delete(gids))
        return deletions[-1]

    async def watched(workers: Any, opener: Any, operation: Any) -> Any:
        deleting = any(operation is one for one in deletions)
        if deleting:
            moments.reach("before deletion")
        result = await run_on_new(workers, opener, operation)
        if deleting:
            moments.reach("after deletion")
        return result

    async def no_look(self: Any, door: Any) -> bool:
        return False

    outbox.outbox_delete, outbox.run_on_new = remembered, watched
    outbox.Outbox._drive_once = no_look
