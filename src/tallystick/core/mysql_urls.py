"""Addresses of MySQL and MariaDB as an operator writes them: `mysql://user:word@host:3306/database`, and with several
hosts, `host:3306,other:3306`, where there are several servers with the same data."""

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


def mysql_servers(url: str) -> list[dict[str, Any]]:
    """What PyMySQL's connect() is told, of each host in its turn. ValueError if this is no address."""
    parts = urlsplit(url)
    who, at, hosts = parts.netloc.rpartition("@")
    return [mysql_parameters(parts._replace(netloc=f"{who}{at}{host}").geturl()) for host in hosts.split(",")]
