"""A TCP proxy that cuts a connection around one request, before or after the server has acted on it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal

Cut = Literal["before", "after"]


class CuttingProxy:
    """Forwards everything until it is armed; the next request is then the connection's last."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._cut: Cut | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def arm(self, cut: Cut) -> None:
        """`before`: the server never sees the next request. `after`: it does, but its answer is lost."""
        self._cut = cut

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, requests in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pump, args=(source, sink, requests))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, requests: bool) -> None:
        try:
            while data := source.recv(65536):
                if self._cut == ("before" if requests else "after"):
                    break
                sink.sendall(data)
        except OSError:
            return  # the other direction has closed both
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@contextlib.contextmanager
def cutting_proxy(port: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
