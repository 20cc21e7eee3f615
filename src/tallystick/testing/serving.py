"""A broker on a thread with an event loop of its own, behind a loopback port that stays the same.

What stands behind the port can be exchanged (`reset`), and the port can be deaf for a while (`go_down`, `come_back`)
or swallow answers. gRPC is not spoken, and not imported.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from tallystick.api.http.native import NativeApi
from tallystick.api.serving.asgi import CallerGone, Receive, Scope, Send
from tallystick.api.serving.http1 import Http1Connection
from tallystick.broker.broker import Broker
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import TallystickError

T = TypeVar("T")

_DTM_PREFIX = "/api/"
_BATCH = "/v1/batch"


class LostAnswers:
    """Which answers are to be lost: those to requests with an operation of this kind, so many of them."""

    def __init__(self, op: str, times: int | None) -> None:
        self.op, self.left = op, times
        self.lost = 0

    def take(self, body: bytes) -> bool:
        """Whether the answer to this request is one of them; it is counted then."""
        try:
            kinds = [one["op"] for one in msgspec.msgpack.decode(body)["ops"]]
        except (msgspec.MsgspecError, TypeError, KeyError):  # of no client of ours
            return False
        if self.left == 0 or self.op not in kinds:
            return False
        self.lost += 1
        if self.left is not None:
            self.left -= 1
        return True


class BrokerThread:
    """`open_broker` makes the broker, on the loop. Used from other threads; the private coroutines belong to the
    loop."""

    def __init__(self, open_broker: Callable[[], Broker]) -> None:
        self._open_broker = open_broker
        self._process = os.getpid()
        # Bound as long as we live, and never listening: nobody else gets the port while the broker is down.
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self._socket: socket.socket | None = None
        self._listening: asyncio.Server | None = None
        self._connections: set[Http1Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.losing: LostAnswers | None = None
        _all.add(self)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tallystick-test-broker", daemon=True)
        self._thread.start()
        try:
            self.call(self._open)
            self.come_back()
        except BaseException:
            self._end()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def door(self) -> BrokerDoor:
        return self._door

    @property
    def is_down(self) -> bool:
        return self._listening is None

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the broker's loop and wait for what it returns."""
        if os.getpid() != self._process:
            raise TallystickError("this broker runs in the parent process: look at what it has there")

        async def run() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def forget_inherited(self) -> None:
        """In a forked child: the port is the parent's."""
        self._reserved.close()
        if self._socket is not None:
            self._socket.close()

    # What stands behind the port

    async def _open(self) -> None:
        self._broker = self._open_broker()
        self._door = self._broker.door()
        self._native = NativeApi(self._door)
        self._dtm: Any = None

    async def deliver_delayed(self) -> None:
        """What is due by now."""
        await self._broker.deliver_delayed()

    def reset(self) -> None:
        """Another broker, without anything, answers from now on."""
        self.losing = None
        self.come_back()

        async def exchange() -> None:
            old = self._broker
            await self._open()
            await old.close()

        self.call(exchange)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(_DTM_PREFIX):
            await self._dtm_api()(scope, receive, send)
        elif self.losing is not None and scope["path"] == _BATCH:
            await self._native(scope, *_swallowing(self.losing, receive, send))
        else:
            await self._native(scope, receive, send)

    def _dtm_api(self) -> Any:
        if self._dtm is None:
            from tallystick.api.dtm.http import DtmHttp  # late: few tests speak to it

            self._dtm = DtmHttp(self._door)
        return self._dtm

    # The port

    def come_back(self) -> None:
        """Listen again, with all that was there."""

        async def listen() -> None:
            self._socket = _bound(self.port)
            self._listening = await self._loop.create_server(self._connected, sock=self._socket)

        if self._listening is None:
            self.call(listen)

    def go_down(self) -> None:
        """Refuse connections, and end those that are there."""
        self.call(self._deaf)

    async def _deaf(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:  # noqa: ASYNC110 - each is told of its end in one of the next turns
            await asyncio.sleep(0)

    def _connected(self) -> Http1Connection:
        return Http1Connection(self._answer, _State(self._connections, self._tasks))

    def stop(self) -> None:
        """End everything. In a forked child there is nothing to end: it is the parent's."""
        if os.getpid() != self._process:
            return

        async def close() -> None:
            self._broker.drain()  # sends the long polls home
            await self._deaf()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._broker.close()
            await self._loop.shutdown_default_executor()

        self.call(close)
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()


class _State:
    """Where a connection is known."""

    def __init__(self, connections: set[Http1Connection], tasks: set[asyncio.Task[Any]]) -> None:
        self.connections, self.tasks = connections, tasks


def _bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def _swallowing(losing: LostAnswers, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """The same request; it is carried out, and then the connection breaks in place of the answer."""
    pieces: list[bytes] = []

    async def receive_and_keep() -> Scope:
        event = await receive()
        pieces.append(event.get("body", b""))
        return event

    async def send_or_lose(event: Scope) -> None:
        if event["type"] == "http.response.start" and losing.take(b"".join(pieces)):
            raise CallerGone
        await send(event)

    return receive_and_keep, send_or_lose


_all: weakref.WeakSet[BrokerThread] = weakref.WeakSet()


def _forget_all() -> None:
    for thread in list(_all):
        thread.forget_inherited()


os.register_at_fork(after_in_child=_forget_all)
