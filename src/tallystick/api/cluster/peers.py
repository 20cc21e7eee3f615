"""What one broker of a cluster tells another of who is asking: sealed with the key that only the brokers have.

The seal holds for one method and one path, and for a short while. It says nothing of the body: who can change what goes
from one broker to another must be kept out by TLS between them.
"""

from __future__ import annotations

import hmac
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Callable
from functools import lru_cache
from typing import Literal
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from tallystick.core.access import Identity
from tallystick.core.errors import Unauthenticated

FRESH_MS = 30_000
SOURCE_LENGTH = 64
_NONCE_BYTES = 12
_LARGE_BYTES = 1_024  # from here on it is packed: all headers of a request together have a limit


Purpose = Literal["route", "door"]


class Vouched(Struct, frozen=True, array_like=True):
    """Who it is, the address that the first broker was asked from, and what that one wants: to hand on what it was
    asked, whatever that is, or to ask for one of the ways of a store's door by itself."""

    identity: Identity
    source: str
    purpose: Purpose = "route"


class _Sealed(Struct, frozen=True, array_like=True):
    at_ms: int
    nonce: bytes
    vouched: bytes
    packed: bool


_decode_sealed = msgspec.msgpack.Decoder(_Sealed).decode
_decode_vouched = msgspec.msgpack.Decoder(Vouched).decode
_encode = msgspec.msgpack.Encoder().encode


def told_source(source: str) -> bytes:
    """The value of the header where nobody is asked who they are: from where they ask, for the log of what was done."""
    return b"from " + quote(source).encode() if source else b""


def source_in(header: bytes) -> str:
    """What a broker has told so; worth what anybody's word is."""
    said, _, source = header.decode("latin-1").partition(" ")
    return unquote(source)[:SOURCE_LENGTH] if said == "from" else ""


class PeerSeal:
    """`key` is asked each time: it may become another, once in a cluster's life. `now_ms` is the engine's clock, which
    all brokers reckon alike, whatever their machines' clocks say."""

    def __init__(self, key: Callable[[], bytes], now_ms: Callable[[], int]) -> None:
        self._key, self._now_ms = key, now_ms

    def seal(self, method: str, path: bytes, vouched: Vouched) -> bytes:
        """The value of the header, for a request with this method and this path, the query with it."""
        told = _encode(vouched)
        packed = len(told) > _LARGE_BYTES
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = _encode(_Sealed(self._now_ms(), nonce, zlib.compress(told) if packed else told, packed))
        return b"v1." + urlsafe_b64encode(sealed) + b"." + self._mac(method, path, sealed)

    def open(self, header: bytes, method: str, path: bytes) -> Vouched:
        """Who is asking, if another broker says so; `Unauthenticated` if it is not known that it does."""
        version, _, rest = header.partition(b".")
        text, _, mac = rest.partition(b".")
        try:
            sealed = urlsafe_b64decode(text)
        except NoBase64:
            sealed = b""
        if version != b"v1" or not hmac.compare_digest(mac, self._mac(method, path, sealed)):
            raise _refused("it was not sealed by a broker of this cluster, or for another request")
        return self._vouched(_decode_sealed(sealed))

    def _vouched(self, sealed: _Sealed) -> Vouched:
        """From here on it is a broker's own word."""
        if abs(self._now_ms() - sealed.at_ms) > FRESH_MS:
            raise _refused(f"its seal is older than {FRESH_MS // 1000} seconds")
        return _unpacked(sealed.vouched, sealed.packed)

    def _mac(self, method: str, path: bytes, sealed: bytes) -> bytes:
        """Each part with its length, so that no two requests read alike."""
        parts = (method.encode(), path, sealed)
        signed = b"".join(b"%d:%b" % (len(part), part) for part in parts)
        if not (key := self._key()):
            raise RuntimeError("the key of the cluster is not known yet")
        return hmac.digest(key, b"tallystick-caller:" + signed, "sha256").hex().encode()


@lru_cache(maxsize=1_024)
def _unpacked(vouched: bytes, packed: bool) -> Vouched:
    """Most requests are those of few: what was found of them once is the same object then."""
    return _decode_vouched(zlib.decompress(vouched) if packed else vouched)


def _refused(reason: str) -> Unauthenticated:
    return Unauthenticated(f"Tallystick-Caller: {reason}; it is for the brokers of a cluster alone")
