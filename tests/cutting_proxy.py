"""A TCP proxy that cuts connections around a request, before or after the server has acted on it.

It knows nothing of what is spoken: for a network that knows HTTP and does more than cut, see `fault_proxy.py`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal

Cut = Literal["no", "before", "after"]
"""`before`: the server never sees the request. `after`: it does, and its answer is lost."""


class CuttingProxy:
    """Stands before a server on 127.0.0.1. `choose` is asked for each piece that a client sends; `cut` counts."""

    def __init__(self, target_port: int, choose: Callable[[bytes], Cut] = lambda _: "no") -> None:
        self.cut = 0
        self._target, self._choose = target_port, choose
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, cut: Cut) -> None:
        """The next request is its connection's last."""
        self._choose = lambda _: cut

    def calm(self) -> None:
        self.arm("no")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            _end(one)
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._open |= {client, server}
        silent = threading.Event()
        self._start(lambda: self._requests(client, server, silent))
        self._start(lambda: self._answers(server, client, silent))

    def _requests(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                cut = self._choose(data)
                if cut == "before":
                    self.cut += 1
                    break
                if cut == "after":
                    silent.set()
                server.sendall(data)
        if not silent.is_set():
            _end(client)
            _end(server)

    def _answers(self, server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if silent.is_set():
                    self.cut += 1
                    break
                client.sendall(data)
        _end(client)
        _end(server)
        for one in (client, server):
            self._open.discard(one)
            one.close()


class LossyProxy(CuttingProxy):
    """Cuts around requests that contain some bytes: after those with `losing`, `lose_at_most` times, and before those
    with `refusing`."""

    def __init__(self, target_port: int) -> None:
        self.losing: bytes | None = None
        self.refusing: bytes | None = None
        self.lose_at_most = 1_000_000
        super().__init__(target_port, self._by_content)

    def _by_content(self, data: bytes) -> Cut:
        if self.refusing is not None and self.refusing in data:
            return "before"
        lost = self.losing is not None and self.losing in data and self.cut < self.lose_at_most
        return "after" if lost else "no"


class FullProxy(CuttingProxy):
    """While it is `full`, new connections are accepted and wait, as at a pooler without a free connection."""

    def __init__(self, target_port: int) -> None:
        self.waiting: list[socket.socket] = []
        self.full = False
        super().__init__(target_port)

    def _serve(self, client: socket.socket) -> None:
        if self.full:
            self.waiting.append(client)
        else:
            super()._serve(client)

    def make_room(self) -> None:
        self.full = False
        while self.waiting:
            super()._serve(self.waiting.pop())

    def close(self) -> None:
        super().close()
        for client in self.waiting:
            client.close()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutting_proxy(target_port: int, choose: Callable[[bytes], Cut] = lambda _: "no") -> Iterator[CuttingProxy]:
    with contextlib.closing(CuttingProxy(target_port, choose)) as proxy:
        yield proxy


@contextlib.contextmanager
def full_proxy(target_port: int) -> Iterator[FullProxy]:
    with contextlib.closing(FullProxy(target_port)) as proxy:
        yield proxy


@contextlib.contextmanager
def lossy_proxy(target_port: int) -> Iterator[LossyProxy]:
    with contextlib.closing(LossyProxy(target_port)) as proxy:
        yield proxy
