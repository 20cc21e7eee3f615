"""Tokens: those that the store keeps, and those that the configuration names."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tallystick.core.access import Evidence, Identity, IdentityKind
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
        """`kept` gives what the store keeps, from its memory; the same object while nothing has changed."""
        self._clock, self._kept = clock, kept
        self._static = _by_id(static, "static")
        self._seen: Sequence[TokenRecord] = ()
        self._stored: dict[str, _KnownToken] = {}
        self._names: set[str] = set()  # of those

    async def identity(self, evidence: Evidence) -> Identity | None:
        said = evidence.authorization
        if said[: len(SCHEME)].lower() != SCHEME:
            return None
        parsed = parse_token(said[len(SCHEME) :].strip())
        if parsed is None:
            return None  # it may be a token of another kind
        name, secret = parsed
        known = self._kept_by_id().get(name) or self._static.get(name)
        if known is None or not hmac.compare_digest(known.digest, digest_of(secret)):
            raise Unauthenticated("Authorization: there is no such token, or it was revoked")
        expires_at = known.identity.expires_at
        if expires_at and self._clock.now_ms() >= expires_at:
            raise Unauthenticated(f"Authorization: the token {known.identity.name!r} has expired")
        return known.identity

    def holds(self, identity: Identity) -> bool:
        """Whether somebody who was let in by a token would be let in again: it may have been revoked since."""
        if identity.expires_at and self._clock.now_ms() >= identity.expires_at:
            return False
        self._kept_by_id()
        return identity.kind != "token" or identity.name in self._names

    def _kept_by_id(self) -> dict[str, _KnownToken]:
        kept = self._kept()
        if kept is not self._seen:
            self._stored, self._seen = _by_id(kept, "token"), kept
            self._names = {record.name for record in kept}
        return self._stored


def _by_id(records: Sequence[TokenRecord], kind: IdentityKind) -> dict[str, _KnownToken]:
    return {
        record.id: _KnownToken(
            record.digest, Identity(record.name, kind, record.grants, record.limits, record.expires_at)
        )
        for record in records
    }
