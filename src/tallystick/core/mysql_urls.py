"""Addresses of MySQL and MariaDB as an operator writes them: `mysql://user:word@host:3306/database`, and with several
hosts, `host:3306,other:3306`, where there are several servers with the same data."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_KNOWN = ("unix_socket", *_FILES, "ssl_verify_identity")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}


class WrongOption(ValueError):
    """An option that means nothing here. What it says may be shown: there is nothing of the address in it."""


def mysql_parameters(url: str) -> dict[str, Any]:
    """What PyMySQL's connect() is told. ValueError if this is no address, WrongOption if its options cannot be meant
    so."""
    parts = urlsplit(url)
    known: dict[str, Any] = {
        "host": parts.hostname or "127.0.0.1",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
    }
    options = _options(parts.query)
    socket = options.get("unix_socket")
    return {**known, **_tls(options), **({"unix_socket": socket} if socket else {})}


def _options(query: str) -> dict[str, str]:
    """One that nobody knows is refused: what was meant with it (TLS, perhaps) would not be done, and nobody told."""
    if "@" in query:
        raise ValueError("a ? in the password")  # of which nothing may be shown
    options = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)}
    for name in options:
        if name not in _KNOWN:
            raise WrongOption(f"there is no option {name[:40]!r}; those of MySQL are {', '.join(_KNOWN)}")
    return options


def _tls(options: dict[str, str]) -> dict[str, Any]:
    """With a CA, the server must speak TLS and show a certificate for its name. PyMySQL itself would go on without, or
    believe whoever answers."""
    given = {name: value for name, value in options.items() if name.startswith("ssl")}
    if not given:
        return {}
    if not given.get("ssl_ca"):
        raise WrongOption("TLS needs ssl_ca, the file with the certificates that are trusted")
    verify = _SWITCHES.get(given.pop("ssl_verify_identity", "true"))
    if verify is None:
        raise WrongOption("ssl_verify_identity is true or false")
    return {**given, "ssl_verify_cert": True, "ssl_verify_identity": verify}


def mysql_servers(url: str) -> list[dict[str, Any]]:
    """What PyMySQL's connect() is told, of each host in its turn. ValueError if this is no address."""
    parts = urlsplit(url)
    who, at, hosts = parts.netloc.rpartition("@")
    return [mysql_parameters(parts._replace(netloc=f"{who}{at}{host}").geturl()) for host in hosts.split(",")]
