"""Connections by name, with a time limit for the name as well.

The system's resolver has no limit of its own, and waits for a silent DNS server for 10 to 30 s.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any


def connect(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the first address of `host` that takes one. OSError if there is none within `seconds`."""
    if _is_number(host):
        return socket.create_connection((host, port), seconds)
    until = time.monotonic() + seconds
    failure: OSError = TimeoutError(f"{host} was not resolved within {seconds:.1f} s")
    for *_, place in _addresses(host, port, seconds):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection(place[:2], left)
        except OSError as error:
            failure = error
    raise failure


def _is_number(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def _addresses(host: str, port: int, seconds: float) -> list[Any]:
    """What the resolver says. It is asked on a thread, which is left behind if it does not return."""
    found: list[Any] = []
    failed: list[OSError | UnicodeError] = []

    def resolve() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=resolve, name="tallystick-resolver", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return list(found)
