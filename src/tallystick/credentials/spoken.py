"""What answers where HTTP/1.1 was expected: a port's first bytes tell which protocol it speaks."""

from __future__ import annotations

import socket

PEEK_SECONDS = 0.5
PEEK_BYTES = 64
_FRAME_HEAD = 9  # of HTTP/2: 3 bytes of length, the type, the flags, 4 bytes of stream
_SETTINGS = 4
_TLS_ALERT, _TLS_HANDSHAKE = 0x15, 0x16


class OtherProtocol(ConnectionError):
    """What answers speaks no HTTP/1.1, so it has not acted on the request; the text says what to do."""


def other_protocol(first: bytes) -> OtherProtocol | None:
    """What to say of an answer that is no HTTP, by its first bytes; None if they tell nothing."""
    if len(first) >= _FRAME_HEAD and first[3] == _SETTINGS and first[5:9] == bytes(4):
        return OtherProtocol(
            "it speaks HTTP/2, as the gRPC port of a broker does. Give the broker's HTTP address, such as "
            "http://127.0.0.1:7440"
        )
    if len(first) > 1 and first[0] in (_TLS_ALERT, _TLS_HANDSHAKE) and first[1] == 3:
        return OtherProtocol("it speaks TLS. Give an address that begins with https://")
    return None


def peek(host: str, port: int) -> OtherProtocol | None:
    """What a port says before it is asked, which HTTP servers do not. A gRPC port may close a connection on a request
    of HTTP/1.1 before its first frame was read."""
    try:
        with socket.create_connection((host, port), PEEK_SECONDS) as connection:
            return other_protocol(connection.recv(PEEK_BYTES))
    except OSError:
        return None
