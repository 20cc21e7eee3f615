"""A TCP proxy before a database server that breaks some connections around their COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal

Cut = Literal["no", "before", "after"]
"""`before`: the server never sees the COMMIT. `after`: it does, and its answer is lost."""


class CommitCutter:
    def __init__(self, target_port: int, choose: Callable[[], Cut]) -> None:
        self.cuts = 0
        self._target, self._choose = target_port, choose
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def calm(self) -> None:
        self._choose = lambda: "no"

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
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open |= {client, server}
            silent = threading.Event()
            self._start(lambda client=client, server=server, silent=silent: self._requests(client, server, silent))
            self._start(lambda client=client, server=server, silent=silent: self._answers(server, client, silent))

    def _requests(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                cut = self._choose() if b"COMMIT" in data.upper() else "no"
                if cut != "no":
                    self.cuts += 1
                if cut == "before":
                    break
                if cut == "after":
                    silent.set()
                server.sendall(data)
        if not silent.is_set():
            _end(client)
            _end(server)

    def _answers(self, server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(65536)) and not silent.is_set():
                client.sendall(data)
        _end(client)
        _end(server)
        for one in (client, server):
            self._open.discard(one)
            one.close()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def commit_cutter(target_port: int, choose: Callable[[], Cut]) -> Iterator[CommitCutter]:
    cutter = CommitCutter(target_port, choose)
    try:
        yield cutter
    finally:
        cutter.close()
