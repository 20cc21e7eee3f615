"""Addresses of MySQL and MariaDB as an operator writes them: `mysql://user:word@host:3306/database`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit


def mysql_parameters(url: str) -> dict[str, Any]:
    """What PyMySQL's connect() is told. ValueError if this is no address."""
    parts = urlsplit(url)
    known: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
    }
    socket = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair).get("unix_socket")
    return {**known, "unix_socket": unquote(socket)} if socket else known
