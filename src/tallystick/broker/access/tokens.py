"""Tokens: those that the store keeps, and those that the configuration names."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tallystick.core.access import Evidence, Identity, IdentityKind
from tallystick.core.claims import LEEWAY_MS
from tallystick.core.clock import Clock
from tallystick.core.errors import Unauthenticated
from tallystick.core.token_records import TokenRecord
from tallystick.core.tokens import digest_of, parse_token

SCHEME = "bearer "


class _KnownToken(NamedTuple):
    digest: str
    identity: Identity


def _none_kept() -> Sequence[TokenRecord]:
    return ()


class TokensWay:
    def __init__(
        self,
        clock: Clock,
        static: Sequence[TokenRecord] = (),
        kept: Callable[[], Sequence[TokenRecord]] = _none_kept,
    ) -> None:
        """`kept` gives what the store keeps, from its memory; the same object while nothing has changed. It raises if
        that may be out of date."""
        self._clock, self._kept = clock, kept
        self._static = _by_id(static, "static")
        self._seen: Sequence[TokenRecord] = ()
        self._stored: dict[str, _KnownToken] = {}

    async def identity(self, evidence: Evidence) -> Identity | None:
        said = evidence.authorization
        if said[: len(SCHEME)].lower() != SCHEME:
            return None
        parsed = parse_token(said[len(SCHEME) :].strip())
        if parsed is None:
            return None  # it may be a token of another kind
        name, secret = parsed
        known = self._static.get(name) or self._kept_by_id().get(name)
        if known is None or not hmac.compare_digest(known.digest, digest_of(secret)):
            raise Unauthenticated("Authorization: there is no such token, or it was revoked")
        expires_at = known.identity.expires_at
        if expires_at and self._clock.now_ms() >= expires_at:
            raise Unauthenticated(f"Authorization: the token {known.identity.name!r} has expired")
        return known.identity

    def holds(self, identity: Identity) -> bool:
        """Whether somebody who was let in by a token would be let in again: it may have been revoked since."""
        leeway = LEEWAY_MS if identity.kind == "jwt" else 0  # as when it came
        if identity.expires_at and self._clock.now_ms() >= identity.expires_at + leeway:
            return False
        return identity.kind != "token" or identity.token_id in self._kept_by_id()

    def _kept_by_id(self) -> dict[str, _KnownToken]:
        kept = self._kept()
        if kept is not self._seen:
            self._stored, self._seen = _by_id(kept, "token"), kept
        return self._stored


def _by_id(records: Sequence[TokenRecord], kind: IdentityKind) -> dict[str, _KnownToken]:
    return {record.id: _KnownToken(record.digest, _identity_of(record, kind)) for record in records}


def _identity_of(record: TokenRecord, kind: IdentityKind) -> Identity:
    token_id = record.id if kind == "token" else ""
    return Identity(record.name, kind, record.grants, record.limits, record.expires_at, token_id)
