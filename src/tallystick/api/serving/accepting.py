"""Taking connections: each is counted before anything is done for it, TLS included."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import Callable

from tallystick.api.serving.crowd import ConnectionPlace, Crowd
from tallystick.api.serving.problems import last_words
from tallystick.core.errors import InvalidRequest, TallystickError

BACKLOG = 2_048
OTHER_FILES = 2_000  # of the store, its threads, and connections that go out
FULL_SECONDS = 0.1


def make_room(connections: int) -> None:
    """Every connection is an open file. Systems start processes with few of them, and let them have more if asked."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
        )


class Acceptor:
    """Takes the connections to one socket; `made` gives each a protocol, `tls` what it is to be encrypted with now."""

    def __init__(
        self,
        listening: socket.socket,
        made: Callable[[ConnectionPlace], asyncio.Protocol],
        crowd: Crowd,
        tls: Callable[[], ssl.SSLContext | None],
        handshake_seconds: float,
    ) -> None:
        self._socket, self._made, self._crowd, self._tls = listening, made, crowd, tls
        self._handshake_seconds = handshake_seconds
        self._greetings: dict[asyncio.Task[None], socket.socket] = {}
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._task = asyncio.create_task(self._run(), name="accept")

    async def stop(self) -> None:
        """Those that are connected stay. Nobody comes in behind this: a greeting that was cancelled could still make a
        connection, which nobody would end. So they are waited for, and those that wait for a handshake are cut off."""
        self._task.cancel()
        for connection in self._greetings.values() if self._tls() is not None else ():
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(self._task, *self._greetings, return_exceptions=True)
        self._socket.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # the client went away before it was taken
                    self._crowd.say(f"no connection can be taken: {error.strerror}", "files")
                    await asyncio.sleep(FULL_SECONDS)
                continue
            self._welcome(connection, str(address[0]))

    def _welcome(self, connection: socket.socket, address: str) -> None:
        refusal = self._crowd.refusal(address)
        if refusal is not None:
            with connection:
                if self._tls() is None:  # a client that speaks TLS would not understand it
                    _refuse(connection, refusal)
            return
        task = asyncio.create_task(self._greet(connection, self._crowd.enter(address)))
        self._greetings[task] = connection
        task.add_done_callback(self._greetings.pop)

    async def _greet(self, connection: socket.socket, place: ConnectionPlace) -> None:
        context = self._tls()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: self._made(place), connection)
            else:
                await self._encrypt(connection, place, context)
        except OSError:  # the client has gone again
            place.leave()
            connection.close()
        except BaseException:
            place.leave()
            connection.close()
            raise

    async def _encrypt(self, connection: socket.socket, place: ConnectionPlace, context: ssl.SSLContext) -> None:
        with connection.dup() as spare:  # the other one is closed together with what failed
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._made(place),
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_seconds,
                )
            except OSError as error:  # an ssl.SSLError is one: no TLS, too old, or without a certificate that counts
                place.leave()
                reason = getattr(error, "reason", None) or ""
                place.cut("handshake", reason)
                if reason == "HTTP_REQUEST":
                    _refuse(spare, InvalidRequest("this port speaks TLS: its address begins with https://"))


def _refuse(connection: socket.socket, why: TallystickError) -> None:
    """In a word that costs nothing."""
    try:
        connection.send(last_words(why))
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it did not wait for the answer
