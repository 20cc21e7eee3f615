"""A server that answers a byte at a time and never comes to an end: each read brings something."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Iterator

BETWEEN_SECONDS = 0.2


@contextlib.contextmanager
def dribbling_server(at_once: bytes, again: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its URL. Every request gets `at_once`, then the bytes of `again` one by one, over and over."""
    ends = threading.Event()
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            connection = tls.wrap_socket(connection, server_side=True) if tls else connection
            with connection:
                connection.recv(65_536)
                connection.sendall(at_once)
                for byte in itertools.cycle(again):
                    if ends.wait(BETWEEN_SECONDS):
                        return
                    connection.sendall(bytes([byte]))

    def accept() -> None:
        while not ends.is_set():
            with contextlib.suppress(TimeoutError):
                threads.append(threading.Thread(target=answer, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ends.set()
            for thread in (accepting, *threads):
                thread.join()
