"""A token as somebody asks for it, as it is kept, and as it is shown. What is a secret is in none of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from tallystick.core.access import EVERY, OPEN_NAME, CallerLimits, Grant, HostPattern, NamePattern, Role, TokenName
from tallystick.core.durations import DAY_MS
from tallystick.core.errors import InvalidRequest
from tallystick.core.tokens import new_token

LONGEST_MS = 36_500 * DAY_MS


class TokenRecord(Struct, frozen=True, omit_defaults=True):
    """A token as it is kept: `id` is the part of it that is no secret, `digest` the SHA-256 of the rest, in hex. Times
    are in milliseconds since the epoch, `expires_at` 0 for never."""

    name: str
    id: str
    digest: str
    grants: tuple[Grant, ...]
    created_at: int
    created_by: str = ""
    expires_at: int = 0
    limits: CallerLimits = CallerLimits()

    def __repr__(self) -> str:
        return f"TokenRecord({self.name!r}, id={self.id!r})"  # what is known of the secret stays out of logs


class TokenSpec(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A token that somebody wants: `roles` on `topics`, `groups` and `hosts`, all of them where none are named; or
    several `grants`, for one that has some roles here and others there."""

    name: TokenName
    roles: Annotated[tuple[Role, ...], Meta(max_length=16)] = ()
    topics: Annotated[tuple[NamePattern, ...], Meta(min_length=1, max_length=64)] = EVERY
    groups: Annotated[tuple[NamePattern, ...], Meta(min_length=1, max_length=64)] = EVERY
    hosts: Annotated[tuple[HostPattern, ...], Meta(min_length=1, max_length=64)] = EVERY
    grants: Annotated[tuple[Grant, ...], Meta(max_length=16)] = ()
    expires_in_ms: Annotated[int, Meta(ge=1, le=LONGEST_MS)] | None = None
    limits: CallerLimits = CallerLimits()

    def wanted(self) -> tuple[Grant, ...]:
        given = (self.topics, self.groups, self.hosts) != (EVERY, EVERY, EVERY)
        if self.grants and (self.roles or given):
            raise InvalidRequest("grants: give them, or roles with topics, groups and hosts, not both", field="grants")
        if not self.grants and not self.roles:
            raise InvalidRequest("roles: say at least one; without any a token may do nothing", field="roles")
        return self.grants or (Grant(self.roles, self.topics, self.groups, self.hosts),)


class TokenView(Struct, omit_defaults=True):
    """A token as it is shown. `missing_on`: stores of a cluster that do not know it."""

    name: str
    id: str
    grants: tuple[Grant, ...]
    created_at: int
    created_by: str = ""
    expires_at: int = 0
    limits: CallerLimits = CallerLimits()
    missing_on: list[str] = []


class MadeToken(Struct, omit_defaults=True):
    """A token that was made. `token` is shown this once: what is kept cannot be turned back into it."""

    name: str
    id: str
    token: str
    grants: tuple[Grant, ...]
    created_at: int
    expires_at: int = 0
    limits: CallerLimits = CallerLimits()

    def __repr__(self) -> str:
        return f"MadeToken({self.name!r}, id={self.id!r})"


def token_of(spec: TokenSpec, now_ms: int) -> tuple[MadeToken, TokenRecord]:
    """What its owner is told, and what is kept."""
    text, token_id, digest = new_token()
    grants = spec.wanted()
    until = 0 if spec.expires_in_ms is None else now_ms + spec.expires_in_ms
    made = MadeToken(spec.name, token_id, text, grants, now_ms, until, spec.limits)
    return made, TokenRecord(spec.name, token_id, digest, grants, now_ms, expires_at=until, limits=spec.limits)


def shown(record: TokenRecord) -> TokenView:
    return TokenView(
        record.name,
        record.id,
        record.grants,
        record.created_at,
        record.created_by,
        record.expires_at,
        record.limits,
    )


def admins_made_while_open(tokens: Iterable[TokenRecord | TokenView], now_ms: int) -> list[str]:
    """The names of admins' tokens that were made while access control was off, by whoever reached the broker. Locked
    doors do not keep them out."""
    return sorted(
        one.name
        for one in tokens
        if one.created_by == OPEN_NAME
        and any(grant.has("admin") for grant in one.grants)
        and not 0 < one.expires_at <= now_ms
    )
