"""The certificate that a client has shown, once it was verified: the names in it, and until when they count."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_KINDS = {"DNS": "DNS:", "URI": "URI:", "email": "EMAIL:"}


class PeerCertificate(NamedTuple):
    """Of one connection, which may last longer than it. `required`: nobody is spoken to without one."""

    names: tuple[str, ...] = ()
    expires_at: float = float("inf")
    required: bool = False


def peer_certificate(connection: Callable[[str], Any]) -> PeerCertificate:
    """`connection` tells what a transport knows: its `get_extra_info`."""
    encrypted = connection("ssl_object")
    shown = encrypted.getpeercert() if encrypted is not None else None
    if not shown:
        return PeerCertificate()
    names = [f"CN={value}" for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    names += [_KINDS[kind] + value for kind, value in shown.get("subjectAltName", ()) if kind in _KINDS]
    required = encrypted.context.verify_mode is ssl.CERT_REQUIRED
    return PeerCertificate(readable(names), ssl.cert_time_to_seconds(shown["notAfter"]), required)


def readable(names: Iterable[str]) -> tuple[str, ...]:
    """Those that can be written into a line without breaking it."""
    return tuple(name for name in names if name.isprintable())


def has_passed(moment: float) -> bool:
    return time.time() >= moment
