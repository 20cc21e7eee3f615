"""The names in the certificate that a client has shown, once it was verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_KINDS = {"DNS": "DNS:", "URI": "URI:", "email": "EMAIL:"}


def peer_names(connection: Callable[[str], Any]) -> tuple[str, ...]:
    """`connection` tells what a transport knows: its `get_extra_info`."""
    encrypted = connection("ssl_object")
    shown = encrypted.getpeercert() if encrypted is not None else None
    if not shown:
        return ()
    names = [f"CN={value}" for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    names += [_KINDS[kind] + value for kind, value in shown.get("subjectAltName", ()) if kind in _KINDS]
    return readable(names)


def readable(names: Iterable[str]) -> tuple[str, ...]:
    """Those that can be written into a line without breaking it."""
    return tuple(name for name in names if name.isprintable())
