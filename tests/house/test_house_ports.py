"""Ports for processes of one's own: many tests start servers at once."""

from __future__ import annotations

import errno
import socket

import pytest

from tallystick.local import free_port


def test_a_free_port_is_given_to_nobody_else() -> None:
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    for port in ports:  # so the kernel says to a search of another process, too
        with socket.socket() as probe, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
            probe.bind(("127.0.0.1", port))


def test_a_server_can_bind_a_free_port() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        connection, _ = server.accept()
        connection.close()
