"""The sockets of a broker: bound before the store is opened, so that a taken port is told at once and plainly."""

from __future__ import annotations

import errno
import os
import socket

from tallystick.core.errors import TallystickError

_ELSEWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - names of "every address", not a choice to bind them
_FLAGS = {"port": " (--port N)", "grpc_port": " (--grpc-port N, or --no-grpc to do without)"}
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def bind(host: str, port: int, setting: str = "port") -> list[socket.socket]:
    """Sockets bound to every address of `host`; port 0 picks a free one, the same for all of them. `setting` is
    where the port comes from.

    They do not listen yet: until the broker is ready, a connection is refused instead of left waiting.
    """
    bound: list[socket.socket] = []
    failure: OSError | None = None
    for family, address in _addresses(host, port):
        try:
            bound.append(_bound(family, (address, port)))
        except OSError as error:
            failure = error
            if error.errno not in _NOT_HERE:
                break  # the port is taken or forbidden; being reachable on half of the addresses helps nobody
            continue
        port = bound[-1].getsockname()[1]
    if not bound or (failure is not None and failure.errno not in _NOT_HERE):
        close(bound)
        raise cannot_listen(f"{host}:{port}", failure, setting)
    return bound


def close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()


def place_of(sockets: list[socket.socket], host: str) -> str:
    """Where a program on this machine reaches the sockets: host:port."""
    name = _ELSEWHERE.get(host, host)
    return f"{f'[{name}]' if ':' in name else name}:{sockets[0].getsockname()[1]}"


def _addresses(host: str, port: int) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise TallystickError(
            f"host: {host!r} is no address of this machine: {error.strerror}", field="host"
        ) from error
    return list(dict.fromkeys((family, str(place[0])) for family, _, _, _, place in found))


def _bound(family: int, place: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted broker must not wait for the connections of the one before it to be forgotten.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
    except OSError:
        made.close()
        raise
    return made


def cannot_listen(place: str, error: OSError | None, setting: str = "port") -> TallystickError:
    reason = os.strerror(error.errno) if error is not None and error.errno else "the name has no address"
    taken = error is not None and error.errno == errno.EADDRINUSE
    hint = f"; stop the program that uses it, or choose another port{_FLAGS.get(setting, '')}" if taken else ""
    return TallystickError(f"{setting}: cannot listen on {place}: {reason}{hint}", field=setting)
