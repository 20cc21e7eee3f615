"""HTTP/2 by hand, for what no library of gRPC sends: calls whose message stops in the middle, and clients that do not
answer to pings. What comes back is told by the types of its frames."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ACK, _END_HEADERS = 1, 4


class Http2Client:
    """One connection. It ends when the block does."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
        self._next = 1
        self.socket.sendall(_PREFACE)
        self._send(SETTINGS, 0, 0)

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, route: str, **metadata: str) -> int:
        """Begins a call, and sends nothing of its message; the number of its stream."""
        stream, self._next = self._next, self._next + 2
        head = {":method": "POST", ":scheme": "http", ":path": route, ":authority": "x", "te": "trailers"}
        head |= {"content-type": "application/grpc", **metadata}
        self._send(HEADERS, _END_HEADERS, stream, b"".join(map(_literal, head.items())))
        return stream

    def message(self, stream: int, size: int, sent: int) -> None:
        """The first bytes of a message that is said to be larger."""
        self._send(DATA, 0, stream, struct.pack(">BI", 0, size) + b"\0" * sent)

    def frames(self, until: int) -> list[int]:
        """The types of the frames that come, up to the first of this type, or up to the end of the connection."""
        seen: list[int] = []
        while until not in seen:
            head = self._exactly(9)
            if len(head) < 9:
                break
            self._exactly(int.from_bytes(head[:3]))
            seen.append(head[3])
            if head[3] == SETTINGS and not head[4] & _ACK:
                self._send(SETTINGS, _ACK, 0)  # who does not say this is taken for dead, sooner or later
        return seen

    def _exactly(self, size: int) -> bytes:
        found = b""
        try:
            while len(found) < size and (piece := self.socket.recv(size - len(found))):
                found += piece
        except ConnectionResetError:
            pass
        return found

    def _send(self, kind: int, flags: int, stream: int, content: bytes = b"") -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what comes, or not, tells the end
            self.socket.sendall(len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content)


def _literal(field: tuple[str, str]) -> bytes:
    """A field of HPACK that refers to none before it."""
    name, value = (part.encode() for part in field)
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    assert size < 127
    return bytes((size,))
