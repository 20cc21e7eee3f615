"""A plain load balancer in front of several programs: each connection goes to the next one that takes it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator, Sequence


class RoundRobinProxy:
    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = itertools.cycle(ports)
        self._count = len(ports)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self._listening.accept()
                thread = threading.Thread(target=self._serve, args=(caller,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, caller: socket.socket) -> None:
        with caller:
            behind = self._connected()
            if behind is None:
                return
            with behind:
                self._open |= {caller, behind}
                back = threading.Thread(target=_pass_on, args=(behind, caller), daemon=True)
                back.start()
                _pass_on(caller, behind)
                back.join()
                self._open -= {caller, behind}

    def _connected(self) -> socket.socket | None:
        for port in itertools.islice(self._ports, self._count):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), timeout=30)
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for one, how in ((source, socket.SHUT_RD), (target, socket.SHUT_WR)):
        with contextlib.suppress(OSError):
            one.shutdown(how)


@contextlib.contextmanager
def round_robin(ports: Sequence[int]) -> Iterator[RoundRobinProxy]:
    proxy = RoundRobinProxy(ports)
    try:
        yield proxy
    finally:
        proxy.close()
