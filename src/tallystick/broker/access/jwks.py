"""The keys of an identity provider (JWKS): from a file, or from its address, and again when they change.

Public keys of asymmetric algorithms alone. Which of these a key is for is said by the key, never by a token.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast
from urllib import request as urllib
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from tallystick.broker.threads import on_a_thread
from tallystick.changing_file import MOST_BYTES, ChangingFile
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.durations import DAY_MS
from tallystick.core.errors import ConfigError, Unauthenticated
from tallystick.limited_http import LimitedConnection

log = logging.getLogger("tallystick.broker.access")

FETCH_SECONDS = 5.0
FRESH_MS = 600_000
LEAST_BETWEEN_MS = 30_000
LEAST_RSA_BITS = 2_048
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "Ed25519": ("EdDSA",)}


class JwtKey(NamedTuple):
    id: str | None
    algorithms: tuple[str, ...]  # that it may be used with
    key: Any


class KeySet(NamedTuple):
    keys: tuple[JwtKey, ...]

    def find(self, kid: str | None) -> JwtKey | None:
        """The key of this name. A token that names none is meant for the only one there is."""
        if kid is None:
            return self.keys[0] if len(self.keys) == 1 else None
        return next((one for one in self.keys if one.id == kid), None)


class KeySource(Protocol):
    @property
    def generation(self) -> int:
        """Another number when the keys are others: what was verified with the old ones is to be verified again."""

    async def find(self, kid: str | None) -> JwtKey | None:
        """The key of a token. Raises `Unauthenticated` if there are no keys to look among."""


def parse_jwks(text: str | bytes) -> KeySet:
    """The keys of a JWKS that can verify a JWT; ConfigError if there is none."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"no JWKS: {error}") from error
    if not isinstance(found, list):
        raise ConfigError('no JWKS: it is to be {"keys": [...]}')
    keys = tuple(key for one in found if isinstance(one, dict) and (key := _key(one)) is not None)
    if not keys:
        raise ConfigError("none of its keys is a public key of RSA (2,048 bits or more), P-256, P-384 or Ed25519")
    return KeySet(keys)


def _key(found: Mapping[str, Any]) -> JwtKey | None:
    """None for a key that is not for us: for encryption, of a kind that we do not take, or damaged."""
    allowed = _RSA if found.get("kty") == "RSA" else _BY_CURVE.get(str(found.get("crv")), ())
    said = found.get("alg")
    algorithms = allowed if said is None else tuple(one for one in allowed if one == said)
    operations = found.get("key_ops", ["verify"])
    if not algorithms or found.get("use", "sig") != "sig" or "verify" not in operations or "d" in found:
        return None
    try:
        key = PyJWK(dict(found), algorithms[0]).key
    except PyJWTError as error:
        log.warning("a key of the JWKS is left out: %s", type(error).__name__)
        return None
    if found["kty"] == "RSA" and key.key_size < LEAST_RSA_BITS:
        log.warning("a key of the JWKS is left out: RSA with %d bits", key.key_size)
        return None
    kid = found.get("kid")
    return JwtKey(kid if isinstance(kid, str) else None, algorithms, key)


class KeysInFile:
    def __init__(self, path: str) -> None:
        self._file = ChangingFile(path, parse_jwks, "jwt_jwks")

    @property
    def generation(self) -> int:
        self._file.value  # noqa: B018 - it looks whether the file is still the same
        return self._file.generation

    async def find(self, kid: str | None) -> JwtKey | None:
        return self._file.value.find(kid)


class KeysAtAddress:
    """Fetched when they are first needed and every ten minutes; for a key that is not among them at once, but not more
    often than every 30 s, whoever asks. What was fetched last is good for a day if there is nothing newer."""

    def __init__(self, url: str, ca: str = "", clock: Clock | None = None) -> None:
        """`ca`: the file of those who are trusted to say who the provider is, if not those whom this machine trusts. It
        is read with each fetch, so that it may be exchanged."""
        self._url, self._ca, self._clock = url, ca, clock or SystemClock()
        _trusting(ca)  # a file that is wrong is told at the start
        self._keys: KeySet | None = None
        self._raw = b""
        self.generation = 0
        self._fetched = self._tried = 0
        self._running: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> JwtKey | None:
        age = self._clock.elapsed_ms() - self._fetched
        if self._keys is None or age > DAY_MS:
            await self._fetch()
        elif age > FRESH_MS:
            self._begin()  # nobody waits for it
        keys = self._keys
        if keys is None or self._clock.elapsed_ms() - self._fetched > DAY_MS:
            raise Unauthenticated("the keys of the identity provider could not be fetched; the broker's log says why")
        key = keys.find(kid)
        if key is None:
            await self._fetch()
            key = (self._keys or keys).find(kid)
        return key

    def _begin(self) -> asyncio.Task[None] | None:
        """The fetch that runs, or a new one; None if the last one was just now."""
        if self._running is None:
            now = self._clock.elapsed_ms()
            if self._tried and now - self._tried < LEAST_BETWEEN_MS:
                return None
            self._tried = now
            self._running = asyncio.create_task(self._run(), name="jwks")
        return self._running

    async def _fetch(self) -> None:
        running = self._begin()
        if running is not None:
            await asyncio.wait([running], timeout=FETCH_SECONDS)  # without an end to it: others wait for it, too

    async def _run(self) -> None:
        try:
            raw = await on_a_thread(lambda: _fetched(self._url, self._ca), "tallystick-jwks")
            keys = parse_jwks(raw)
        except Exception as error:  # whatever it is: nobody may wait for this task, and the next one tries again
            log.error("jwt_jwks: %s could not be fetched, the last keys go on for a day: %s", self._url, error)
        else:
            self._fetched = self._clock.elapsed_ms()
            if raw != self._raw:
                self._keys, self._raw = keys, raw
                self.generation += 1
        finally:
            self._running = None


class _SameHost(urllib.HTTPRedirectHandler):
    """Keys come from the one who was named, not from whom he names."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        here, there = urlsplit(req.full_url), urlsplit(newurl)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise ConfigError(
            f"jwt_ca: {ca} has no certificate that can be read, in PEM: {error}", field="jwt_ca"
        ) from error


class _Limited(urllib.AbstractHTTPHandler):
    """Each request has FETCH_SECONDS as a whole, whatever the provider sends within them."""

    def __init__(self, ca: str) -> None:
        super().__init__()
        self._ca = ca

    http_request = https_request = urllib.AbstractHTTPHandler.do_request_

    def http_open(self, req: urllib.Request) -> Any:
        return self.do_open(cast(Any, LimitedConnection), req)

    def https_open(self, req: urllib.Request) -> Any:
        return self.do_open(cast(Any, LimitedConnection), req, context=_trusting(self._ca))


def _opener(ca: str) -> urllib.OpenerDirector:
    """Without proxies of the environment, other schemes, and cookies."""
    opener = urllib.OpenerDirector()
    for handler in (_Limited(ca), _SameHost(), urllib.HTTPErrorProcessor(), urllib.HTTPDefaultErrorHandler()):
        opener.add_handler(handler)
    return opener


def _fetched(url: str, ca: str) -> bytes:
    try:
        return _read(_opener(ca), url)
    except HTTPError as error:
        with error:  # it has the connection
            reason = f"status {error.code}; a redirect is followed within its host only"
        raise URLError(reason) from None


def _read(opener: urllib.OpenerDirector, url: str) -> bytes:
    pieces: list[bytes] = []
    asked = urllib.Request(url, headers={"Accept": "application/json", "User-Agent": "tallystick"})  # noqa: S310
    with opener.open(asked, timeout=FETCH_SECONDS) as answer:
        while piece := answer.read1(65_536):
            pieces.append(piece)
            if sum(map(len, pieces)) > MOST_BYTES:
                raise URLError(f"more than {MOST_BYTES} bytes")
    return b"".join(pieces)
