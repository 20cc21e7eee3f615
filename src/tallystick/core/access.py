"""Who may do what: permissions, roles, patterns of names. No I/O, and no secrets.

A *grant* says which permissions somebody has, and on which topics, groups and hosts. An *identity* is who somebody was
found to be, with the grants that follow from it. Whatever no grant covers is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, get_args

from msgspec import Meta, Struct

Permission = Literal["produce", "consume", "call", "check-back", "read", "operate", "admin"]
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)

ROLES: dict[str, frozenset[Permission]] = {
    "producer": frozenset(("produce", "check-back")),
    "consumer": frozenset(("consume",)),
    "caller": frozenset(("call",)),
    "reader": frozenset(("read",)),
    "operator": frozenset(("read", "operate")),
    "admin": frozenset(PERMISSIONS),
}
"""What people give to somebody. A permission by itself is a role, too."""

NamedKind = Literal["topics", "groups", "hosts"]
IdentityKind = Literal["open", "token", "static", "jwt", "certificate", "address", "broker"]
Role = Literal[
    "producer",
    "consumer",
    "caller",
    "reader",
    "operator",
    "admin",
    "produce",
    "consume",
    "call",
    "check-back",
    "read",
    "operate",
]
NamePattern = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9*{}][A-Za-z0-9*{}._:@-]{0,126}\Z",
        description="a name, in which * stands for any characters",
    ),
]
HostPattern = Annotated[
    str,
    Meta(
        pattern=r"^(\[[0-9a-fA-F:.*]+\]|[A-Za-z0-9*._-]{1,253})(:(\d{1,5}|\*))?\Z",
        description="a host, and a port if it matters; * stands for any characters",
    ),
]
TokenName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", description="letters, digits, '.', '_', '-'")
]
CertificatePattern = Annotated[
    str,
    Meta(
        pattern=r"^(CN=|DNS:|URI:|EMAIL:).{1,250}\Z",
        description="a name in a certificate with its kind (CN=, DNS:, URI:, EMAIL:); * stands for any characters",
    ),
]
EVERY = ("*",)
OPEN_NAME = "anybody"
"""Who asks a broker that asks nobody who they are."""


def permissions_of(role: str) -> frozenset[Permission]:
    return ROLES[role] if role in ROLES else frozenset((role,))  # type: ignore[arg-type]


class Grant(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`topics` are topics, and call topics; `groups` producer groups, consumer groups, and the applications of Spark;
    `hosts` those that calls and check-backs go to."""

    roles: Annotated[tuple[Role, ...], Meta(min_length=1, max_length=16)]
    topics: Annotated[tuple[NamePattern, ...], Meta(min_length=1, max_length=64)] = EVERY
    groups: Annotated[tuple[NamePattern, ...], Meta(min_length=1, max_length=64)] = EVERY
    hosts: Annotated[tuple[HostPattern, ...], Meta(min_length=1, max_length=64)] = EVERY

    def has(self, permission: Permission) -> bool:
        return permission in _permissions(self.roles)


class CallerLimits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much one caller may ask of one broker; 0 is without end."""

    max_in_flight: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    bytes_per_second: Annotated[int, Meta(ge=0, le=2**40)] = 0


def widest(some: Iterable[CallerLimits]) -> CallerLimits:
    """Of several that are meant for one caller the larger ones. 0, which is without end, is larger than any."""
    found = tuple(some)
    return CallerLimits(_largest(one.max_in_flight for one in found), _largest(one.bytes_per_second for one in found))


def _largest(some: Iterable[int]) -> int:
    found = tuple(some)
    return 0 if 0 in found else max(found, default=0)


class LimitedGrant(Grant, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What the configuration gives to somebody: a grant and limits, written in one table."""

    max_in_flight: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    bytes_per_second: Annotated[int, Meta(ge=0, le=2**40)] = 0

    @property
    def grant(self) -> Grant:
        return Grant(self.roles, self.topics, self.groups, self.hosts)

    @property
    def limits(self) -> CallerLimits:
        return CallerLimits(self.max_in_flight, self.bytes_per_second)


class CertificateGrant(LimitedGrant, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """For whoever shows a certificate with such a name."""

    name: CertificatePattern


class Granted(LimitedGrant, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """For somebody whom the configuration names."""

    name: TokenName


class StaticToken(Granted, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A token of the configuration, `tally_<id>_<secret>`: its id, and the SHA-256 of its secret, in hex."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9]{12}\Z")]
    token_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    expires_at: Annotated[int, Meta(ge=0, le=2**62)] = 0


class AddressGrant(Granted, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What requests without credentials may that come from these addresses, such as 10.0.0.0/8."""

    addresses: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What a request shows of who sends it: the header `Authorization` as it came, the address that the connection
    comes from, and the names in a client certificate that was verified (`CN=...`, `DNS:...`, `URI:...`)."""

    authorization: str = ""
    source: str = ""
    certificate: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Evidence(source={self.source!r}, certificate={self.certificate!r})"  # never what was said


class Identity(Struct, frozen=True, omit_defaults=True):
    """Who somebody was found to be. `expires_at`: in milliseconds since the epoch, 0 for never. `token_id`: that of the
    token that was shown, if the stores keep it; another one may have its name later."""

    name: str
    kind: IdentityKind
    grants: tuple[Grant, ...]
    limits: CallerLimits = CallerLimits()
    expires_at: int = 0
    token_id: str = ""

    def allows(
        self,
        permission: Permission,
        *,
        topic: str | None = None,
        group: str | None = None,
        host: tuple[str, int] | None = None,
    ) -> bool:
        """Whether one of the grants has the permission and covers all that is named."""
        return any(
            grant.has(permission)
            and (topic is None or covers(grant.topics, topic))
            and (group is None or covers(grant.groups, group))
            and (host is None or covers_host(grant.hosts, *host))
            for grant in self.grants
        )

    def allows_every(self, permission: Permission, *kinds: NamedKind) -> bool:
        """Whether one of the grants has the permission on all there are of each of these kinds, whatever their names
        may be. No pattern but `*` alone says that."""
        return any(
            grant.has(permission) and all("*" in getattr(grant, kind) for kind in kinds) for grant in self.grants
        )

    def groups_for(self, *permissions: Permission) -> tuple[str, ...]:
        """The patterns of groups on which it has one of these."""
        return _joined(grant.groups for grant in self.grants if any(map(grant.has, permissions)))


def _joined(some: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(pattern for patterns in some for pattern in patterns))
    return EVERY if "*" in found else found


@lru_cache(maxsize=1_024)
def _permissions(roles: tuple[str, ...]) -> frozenset[Permission]:
    return frozenset().union(*map(permissions_of, roles))


def covers(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of the patterns is the name, or stands for it."""
    return patterns == EVERY or name in patterns or _globs(patterns).cover(name)


def covers_host(patterns: tuple[str, ...], host: str, port: int) -> bool:
    """A pattern without a port stands for every port."""
    if patterns == EVERY:
        return True
    shown, globs = (f"[{host}]" if ":" in host else host).lower(), _globs_of_hosts(patterns)
    return globs.cover(shown) or globs.cover(f"{shown}:{port}")


class _Globs(NamedTuple):
    """Patterns, taken apart at their stars. Names come from requests, so what is done with one takes no longer than to
    look through it once for each piece: no way to fit is tried twice."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]  # of those whose only star is their end
    others: tuple[tuple[str, ...], ...]

    def cover(self, name: str) -> bool:
        if name.startswith(self.prefixes) or name in self.exact:
            return True
        for pieces in self.others:  # noqa: SIM110 - a generator costs more than the rest
            if _fits(name, pieces):
                return True
        return False


def _fits(name: str, pieces: tuple[str, ...]) -> bool:
    """Whether these follow each other in a name that begins with the first and ends with the last. Where a piece is
    found first it leaves the most room for the next, so nothing else need be tried."""
    first, last = pieces[0], pieces[-1]
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for piece in pieces[1:-1]:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


@lru_cache(maxsize=4_096)
def _globs(patterns: tuple[str, ...]) -> _Globs:
    each = [tuple(pattern.split("*")) for pattern in patterns]
    prefixes = tuple(pieces[0] for pieces in each if len(pieces) == 2 and not pieces[1])
    others = tuple(pieces for pieces in each if len(pieces) > 2 or (len(pieces) == 2 and pieces[1]))
    return _Globs(frozenset(pieces[0] for pieces in each if len(pieces) == 1), prefixes, others)


@lru_cache(maxsize=4_096)
def _globs_of_hosts(patterns: tuple[str, ...]) -> _Globs:
    return _globs(tuple(pattern.lower() for pattern in patterns))
