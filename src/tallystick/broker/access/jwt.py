"""JWTs of the user's own identity provider: who somebody is is said there, what they may is said here."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import jwt
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    InvalidIssuerError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)
from msgspec import Struct

from tallystick.broker.access.jwks import JwtKey, KeysAtAddress, KeysInFile, KeySource
from tallystick.broker.config import Config
from tallystick.core.access import Evidence, Identity, widest
from tallystick.core.claims import LEEWAY_MS, claim_of, granted_by
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.errors import Unauthenticated

LONGEST_TOKEN = 8 * 1024
LONGEST_NAME = 256
LATEST_MS = 2**53  # of what a program in any language can hold
REMEMBERED = 4_096
REMEMBERED_MS = 60_000
_OURS = "tally_"
_REQUIRED = ["exp", "iss", "aud"]


def jwt_way(config: Config, clock: Clock | None = None) -> Jwt:
    """As the configuration says."""
    where, ca = config.jwt_jwks, config.jwt_ca
    keys = KeysAtAddress(where, ca, clock) if "://" in where else KeysInFile(where)
    return Jwt(config, keys, clock)


class _Known(Struct):
    """What came of a token that was verified, while that is good."""

    identity: Identity
    generation: int
    until_ms: int  # of time that passes
    expires_ms: int  # of the clock


class Jwt:
    """The way from a JWT to an identity."""

    def __init__(self, config: Config, keys: KeySource, clock: Clock | None = None) -> None:
        self._issuer, self._audience = config.jwt_issuer, config.jwt_audience
        self._name_claim, self._rules = config.jwt_name_claim, tuple(config.jwt_grants)
        self._keys = keys
        self._clock = clock or SystemClock()
        # A signature of RSA's costs more than all else that a small request does.
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    async def identity(self, evidence: Evidence) -> Identity | None:
        token = _token_in(evidence.authorization)
        if token is None:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known = self._remembered(digest)
        if known is not None:
            return known
        generation = self._keys.generation  # before: of keys that change meanwhile nothing is remembered
        identity = await self._verified(token)
        self._remember(digest, identity, generation)
        return identity

    async def _verified(self, token: str) -> Identity:
        kid, algorithm = _header(token)
        key = await self._keys.find(kid)
        if key is None:
            named = "names no key (kid), and there are several" if kid is None else "is of a key that is not known here"
            raise Unauthenticated(f"the JWT {named}; jwt_jwks has those that count")
        if algorithm not in key.algorithms:
            raise Unauthenticated(f"the JWT's algorithm is not one of its key's: {', '.join(key.algorithms)}")
        claims = self._claims(token, key)
        name = claim_of(claims, self._name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise Unauthenticated(f"the JWT has no name in its claim {self._name_claim}")
        rules = granted_by(claims, self._rules)
        return Identity(
            name,
            "jwt",
            tuple(rule.grant for rule in rules),
            widest(rule.limits for rule in rules),
            min(int(claims["exp"]) * 1000, LATEST_MS),
        )

    def _claims(self, token: str, key: JwtKey) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_MS // 1000,
                options={"require": _REQUIRED},
            )
        except (PyJWTError, ValueError, OverflowError, RecursionError) as error:
            # `from None`: what the library says may quote the token.
            raise Unauthenticated(f"the JWT {self._wrong(error, token)}") from None

    def _wrong(self, error: Exception, token: str) -> str:
        if isinstance(error, ExpiredSignatureError):
            return f"has expired {_ago(token, self._clock.now_ms())}"
        if isinstance(error, InvalidAudienceError):
            return f"is not for this broker: its audience (aud) is not {self._audience!r}"
        if isinstance(error, InvalidIssuerError):
            return f"is of another issuer (iss) than {self._issuer!r}"
        if isinstance(error, MissingRequiredClaimError):
            return f"has no claim {error.claim}"
        if isinstance(error, ImmatureSignatureError):
            return "is not valid yet (nbf, iat); the clocks may differ by 30 s"
        if isinstance(error, InvalidSignatureError):
            return "was not signed with the key that it names"
        return f"is malformed ({type(error).__name__})"

    # What was verified a moment ago

    def _remembered(self, digest: bytes) -> Identity | None:
        known = self._known.get(digest)
        if known is None:
            return None
        if (
            known.generation != self._keys.generation
            or self._clock.elapsed_ms() >= known.until_ms
            or self._clock.now_ms() >= known.expires_ms
        ):
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known.identity

    def _remember(self, digest: bytes, identity: Identity, generation: int) -> None:
        until = self._clock.elapsed_ms() + REMEMBERED_MS
        self._known[digest] = _Known(identity, generation, until, identity.expires_at)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _token_in(authorization: str) -> str | None:
    """A JWT is told by its form: three parts with dots between them."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or token.startswith(_OURS) or token.count(".") != 2:
        return None
    if len(token) > LONGEST_TOKEN:
        raise Unauthenticated(f"the JWT has more than {LONGEST_TOKEN} characters")
    return token


def _header(token: str) -> tuple[str | None, str]:
    """The key that it names, and the algorithm: both only to look up what the key itself says."""
    try:
        header = jwt.get_unverified_header(token)
    except (PyJWTError, ValueError, RecursionError):
        raise Unauthenticated("the JWT is malformed: its header cannot be read") from None
    if "crit" in header:
        raise Unauthenticated("the JWT asks for extensions (crit), and none is known here")
    kid = header.get("kid")
    return kid if isinstance(kid, str) else None, str(header.get("alg"))


def _ago(token: str, now_ms: int) -> str:
    """How long; its signature was right, so it may be read."""
    claims = jwt.decode(token, options={"verify_signature": False})
    return f"{now_ms // 1000 - int(claims['exp'])} s ago"
