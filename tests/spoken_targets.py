"""Requests for a target as it stands, which no library has mended."""

from __future__ import annotations

import socket


def status_of(
    port: int,
    target: str,
    headers: dict[str, str],
    method: str = "GET",
    body: bytes = b"",
    host: str = "127.0.0.1",
) -> int:
    """The status of its answer."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "connection: close", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall("\r\n".join((*lines, "", "")).encode() + body)
        return int(line.makefile("rb").readline().split()[1])
