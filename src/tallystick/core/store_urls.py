"""Addresses of the servers that brokers share, as an operator writes them: `postgresql://user:password@host/database`.

What cannot be right is told before anybody is asked, and without a part of the address: a password with an `@` or a `/`
in it is taken for a host by some drivers, which then show it.
"""

from __future__ import annotations

import re

ENGINES = ("postgresql", "mysql", "redis")
_ALSO = {"postgres": "postgresql", "mariadb": "mysql"}
_OVER_TLS = {"rediss": "redis"}  # stays as it is written: its driver asks the server for TLS
_EXAMPLES = ", ".join(f"{engine}://..." for engine in ENGINES)
_WRITTEN = (
    "not a valid address, such as postgresql://user:password@host:5432/database; in a name or a password "
    "% @ / ? # [ ] are written as %25 %40 %2F %3F %23 %5B %5D"
)
_BARE_PERCENT = re.compile("%(?![0-9a-fA-F]{2})")
_MOST_PORT = 65_535


def store_url(text: str) -> str:
    """The address with the one name of its engine. ValueError, which shows nothing of it, if nobody can be there."""
    name, _, rest = text.partition("://")
    name = _ALSO.get(name, name)
    if engine_of(name) not in ENGINES:
        raise ValueError(f"the address begins with none of {_EXAMPLES}")
    if not _readable(rest):
        raise ValueError(_WRITTEN)
    return f"{name}://{rest}"


def engine_of(url: str) -> str:
    """What keeps the data at an address that `store_url` has read."""
    name = url.partition("://")[0]
    return _OVER_TLS.get(name, name)


def _readable(rest: str) -> bool:
    """Whether it can only be read in one way."""
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    who, _, hosts = authority.rpartition("@")
    return (
        not _BARE_PERCENT.search(rest)
        and not any(sign in who for sign in "@[]")
        and not any(sign in path for sign in "@[]")
        and "#" not in rest
        and all(map(_has_a_port, hosts.split(",")))
        and all("=" in option for option in query.split("&") if option)
    )


def _has_a_port(host: str) -> bool:
    """Or none, which is the usual one."""
    bracket, closed, behind = host.rpartition("]")
    if "[" in behind or ("[" in bracket) != bool(closed):
        return False
    name, colon, port = behind.partition(":")
    if closed and name:
        return False
    return not colon or (port.isascii() and port.isdecimal() and int(port) <= _MOST_PORT)
