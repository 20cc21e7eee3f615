"""Proof that a request comes from a broker: an HMAC over what it asks for. No I/O.

    Tallystick-Signature: t=1790000000000,n=6f2d0c4e9a1b3c5d7e8f,h=bank:8080,k=2026-a,v1=<HMAC-SHA256 in hex>

Signed are six lines: the method, `h` (host and port of the URL that is called), the path with its query, `t`
(milliseconds since the epoch), `n` (drawn for this one request) and the SHA-256 of the body in hex. `k` says which key
it was. Without `h`, whoever may have a broker call a service of their own could play its request to somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from tallystick.core.errors import ConfigError, Unproven

SIGNATURE_HEADER = "Tallystick-Signature"
TOLERANCE_MS = 300_000
LEAST_SECRET = 32
GRPC_METHOD = "POST"  # which every call over gRPC is, underneath

_HEADER = re.compile(
    r"^t=(\d{1,15}),n=([A-Za-z0-9_-]{8,64}),h=([A-Za-z0-9._:\[\]-]{1,300}),k=([A-Za-z0-9._-]{1,64}),v1=([0-9a-f]{64})\Z",
    re.ASCII,
)
_KEY_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}\Z", re.ASCII)
_SECRET = re.compile(r"^[\x21-\x7e]+\Z")


class SigningKey:
    """A name and a secret, which is shown to nobody."""

    __slots__ = ("id", "secret")

    def __init__(self, key_id: str, secret: str) -> None:
        if trouble := _trouble(key_id, secret):
            raise ConfigError(trouble)
        self.id, self.secret = key_id, secret.encode()

    def __repr__(self) -> str:
        return f"SigningKey({self.id!r}, ...)"


Keys = Mapping[str, SigningKey]
"""By their ids; the first is the one that signs."""

Hosts = frozenset[str]
"""As whom a service is called, each with its port."""


def _trouble(key_id: str, secret: str) -> str:
    """What is wrong with a key, in words that show neither part of it: somebody may have swapped them."""
    if not _KEY_ID.match(key_id):
        return "a signing key's id is of letters, digits, '.', '_' and '-', at most 64"
    if len(secret) < LEAST_SECRET or not _SECRET.match(secret):
        return (
            f"a signing key's secret, the second word, must have at least {LEAST_SECRET} characters, all of them "
            "printable ASCII; `tallystick keys new` draws one"
        )
    return ""


class SignatureClaim(NamedTuple):
    """What a header says, before it is known to be true."""

    at_ms: int
    nonce: str
    host: str
    key: SigningKey
    digest: str


def parse_keys(text: str) -> Keys:
    """Keys from lines `id secret`; empty lines and what follows a # at the beginning of a line are left out."""
    keys: dict[str, SigningKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:  # no word of it is shown, here and below: which of them is the secret, nobody knows
            raise ConfigError(f"line {number}: a signing key is a line of two words, its id and its secret")
        if words[0] in keys:
            raise ConfigError(f"line {number}: another line has this id already")
        trouble = _trouble(*words)
        if trouble:
            raise ConfigError(f"line {number}: {trouble}")
        keys[words[0]] = SigningKey(*words)
    if not keys:
        raise ConfigError("there is no signing key; `tallystick keys new` prints one")
    return keys


def sign(key: SigningKey, method: str, host: str, path: str, now_ms: int, nonce: str, body: bytes) -> str:
    """The value of the header. `host` with its port, `path` with its query as it is sent."""
    return f"t={now_ms},n={nonce},h={host},k={key.id},v1={_digest(key, method, host, path, now_ms, nonce, body)}"


def claim(
    keys: Keys,
    header: str | None,
    now_ms: int,
    tolerance_ms: int = TOLERANCE_MS,
    hosts: Hosts | None = None,
) -> SignatureClaim:
    """What can be said before the body is there; `Unproven` if that is already too little."""
    if not header:
        raise Unproven(
            f"there is no header {SIGNATURE_HEADER}: only a broker with a signing key may ask", reason="missing"
        )
    found = _HEADER.match(header)
    if found is None:
        raise Unproven(f"{SIGNATURE_HEADER} is not of the form t=...,n=...,h=...,k=...,v1=...", reason="malformed")
    key = keys.get(found[4])
    if key is None:
        raise Unproven(f"the signing key {found[4]!r} is not known here", reason="unknown_key")
    at_ms = int(found[1])
    if abs(now_ms - at_ms) > tolerance_ms:
        apart = f"{abs(now_ms - at_ms) / 1000:.0f} s {'before' if at_ms < now_ms else 'after'}"
        raise Unproven(
            f"signed {apart} the time of this clock, and {tolerance_ms / 1000:g} s are allowed", reason="skewed"
        )
    if hosts is not None and found[3] not in hosts:
        raise Unproven(f"signed for {found[3]}, which is none of the hosts of this service", reason="elsewhere")
    return SignatureClaim(at_ms, found[2], found[3], key, found[5])


def prove(claimed: SignatureClaim, method: str, path: str, body: bytes) -> None:
    """`Unproven` unless the key's owner has signed just this request."""
    wanted = _digest(claimed.key, method, claimed.host, path, claimed.at_ms, claimed.nonce, body)
    if not hmac.compare_digest(wanted, claimed.digest):
        raise Unproven(
            "the signature is not that of this method, path and body; a proxy that changes the path, or another secret "
            "under the same key id, has the same effect",
            reason="altered",
        )


def verify(
    keys: Keys,
    header: str | None,
    method: str,
    path: str,
    now_ms: int,
    body: bytes,
    tolerance_ms: int = TOLERANCE_MS,
    hosts: Hosts | None = None,
) -> SignatureClaim:
    """What the header says, if it is true. Whether it was used before is for a `Verifier` to know."""
    claimed = claim(keys, header, now_ms, tolerance_ms, hosts)
    prove(claimed, method, path, body)
    return claimed


def grpc_path(method: str, metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """What is signed of a call over gRPC as its path: the full method, and as a query what the metadata says of the
    transaction (`dtm-...`), by name. Else a call could be given to another branch on its way."""
    marks = sorted((str(name), value) for name, value in metadata if str(name).startswith("dtm-"))
    return f"{method}?{urlencode(marks)}" if marks else method


def _digest(key: SigningKey, method: str, host: str, path: str, at_ms: int, nonce: str, body: bytes) -> str:
    text = f"{method}\n{host}\n{path}\n{at_ms}\n{nonce}\n{hashlib.sha256(body).hexdigest()}"
    return hmac.digest(key.secret, text.encode("utf-8", "surrogatepass"), "sha256").hex()
