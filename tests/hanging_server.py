"""A server that takes connections and requests and answers nothing, and counts both."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator

WAKE_SECONDS = 0.1


class HangingServer:
    def __init__(self, port: int = 0) -> None:
        self.connections = 0
        self.heads: list[str] = []
        """The first line of each request."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def requests(self, path: str) -> int:
        return sum(path in head for head in self.heads)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener as listener:
            selector.register(listener, selectors.EVENT_READ)
            while not self._ends.is_set():
                for key, _ in selector.select(WAKE_SECONDS):
                    if key.fileobj is listener:
                        connection, _ = listener.accept()
                        self.connections += 1
                        selector.register(connection, selectors.EVENT_READ)
                        continue
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj, selector)
            for key in list(selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(65_536)
        except OSError:
            data = b""
        if not data:
            selector.unregister(connection)
            connection.close()
        elif b" HTTP/1.1\r\n" in data:
            self.heads.append(data.partition(b"\r\n")[0].decode())

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


@contextlib.contextmanager
def hanging_server(port: int = 0) -> Iterator[HangingServer]:
    server = HangingServer(port)
    try:
        yield server
    finally:
        server.close()
