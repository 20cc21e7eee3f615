"""Where a broker is, as people write it: `host:7440`, `http://host:7440`, `https://user:word@host/behind-a-proxy`."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from tallystick.core.urls import DEFAULT_PORTS

_IN_A_PATH = "/%:@!$&'()*+,;=~"


class BrokerAddress(NamedTuple):
    """An address, taken apart; its text is the one spelling by which brokers are told from each other."""

    scheme: str
    credentials: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        before = f"{self.credentials}@" if self.credentials else ""
        return f"{self.scheme}://{before}{self.authority}{self.path}"

    @property
    def loopback(self) -> bool:
        """Whether it leads every machine to itself."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def login(self) -> tuple[str, str] | None:
        """Name and password for a proxy in front of the broker that asks who is there."""
        name, _, password = self.credentials.partition(":")
        return (unquote(name), unquote(password)) if name else None


def broker_address(text: str) -> BrokerAddress:
    """ValueError if no broker can be there."""
    given = text.strip()
    try:
        parts = urlsplit(given if "//" in given else f"//{given}", scheme="http")
        host, port = parts.hostname or "", parts.port
    except ValueError as reason:
        raise ValueError(f"{text!r} is no address: {reason}") from reason
    unfit = not host or " " in parts.netloc or not given.isprintable()
    if unfit or parts.scheme not in DEFAULT_PORTS or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is no address such as http://127.0.0.1:7440")
    return BrokerAddress(
        parts.scheme,
        parts.netloc.rpartition("@")[0],
        host if host.isascii() else host.encode("idna").decode(),
        DEFAULT_PORTS[parts.scheme] if port is None else port,
        quote(parts.path.rstrip("/"), safe=_IN_A_PATH),
    )
