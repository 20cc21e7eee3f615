"""As whom brokers call a service: what was signed for somebody else is none of its business."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tallystick.core.errors import ConfigError
from tallystick.core.signing import Hosts
from tallystick.core.urls import DEFAULT_PORTS

_HOST = re.compile(r"^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?\Z", re.ASCII)


def parse_hosts(given: str | Iterable[str]) -> Hosts:
    """Hosts as somebody writes them, in one text with commas between them or each by itself: `payments.internal:8080`.
    One without a port stands for the ports of http and https."""
    hosts = [host.strip().lower() for host in (given.split(",") if isinstance(given, str) else given)]
    if not hosts:
        raise ConfigError("hosts: name at least one, such as payments.internal:8080", field="hosts")
    found: set[str] = set()
    for host in hosts:
        parts = _HOST.match(host)
        if parts is None:
            raise ConfigError(f"hosts: {host[:200]!r} is not of the form host:port", field="hosts")
        found.update([host] if parts[2] else [f"{host}:{port}" for port in DEFAULT_PORTS.values()])
    return frozenset(found)
