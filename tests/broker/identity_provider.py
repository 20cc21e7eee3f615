"""An identity provider for tests: real keys, JWTs of any kind, and its keys as a JWKS, in a file or over HTTP."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tallystick.broker.access.jwt import Jwt
from tallystick.broker.config import Config, load_config
from tallystick.core.access import Evidence
from tallystick.core.errors import Unauthenticated

ISSUER, AUDIENCE = "https://id.example/realms/shop", "tallystick"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """One for each name: they are slow to make."""
    return rsa.generate_private_key(65_537, bits)


@cache
def ec_key(name: str, curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


@cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """A key of a JWKS."""
    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind = next((found for base, found in kinds.items() if isinstance(key, base)), OKPAlgorithm)
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return {**found, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


def token(key: Any, kid: str | None = "one", algorithm: str = "RS256", **claims: Any) -> str:
    """Claims of None are left out."""
    now = int(time.time())
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, "scope": "openid"} | claims
    said = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers=None if kid is None else {"kid": kid})


class Provider:
    """Its address, what it answers there, and how often it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.answer: Callable[[BaseHTTPRequestHandler], None] = lambda handler: handler.send_error(500)

    def serves(self, text: str, status: int = 200, **headers: str) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(text.encode())

        self.answer = answer


@contextmanager
def provider(tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    made = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked += 1
            made.answer(self)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            # The handshake on the thread of each connection: one that fails is none of the others' business.
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        made.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/jwks"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


# --- what a broker makes of its JWTs ----------------------------------------------------------------------------------

GRANTS = [
    {"claim": "scope", "value": "orders:write", "roles": ["producer"], "topics": ["orders.*"]},
    {"claim": "realm_access.roles", "value": "ops", "roles": ["operator"]},
    {"claim": "https://shop.example/team", "value": "tea", "roles": ["consumer"], "groups": ["tea-*"]},
]


def settings(where: str | Path, **more: Any) -> Config:
    given = {
        "auth": "tokens",
        "jwt_issuer": ISSUER,
        "jwt_audience": AUDIENCE,
        "jwt_jwks": str(where),
        "jwt_grants": GRANTS,
    } | more
    return load_config(flags=given, environ={})


def asked(text: str) -> Evidence:
    return Evidence(f"Bearer {text}")


async def why_not(jwt: Jwt, text: str) -> str:
    """Why a token is refused; it is never quoted."""
    with pytest.raises(Unauthenticated) as refused:
        await jwt.identity(asked(text))
    for part in text.split("."):
        assert not part or part not in str(refused.value)
    assert refused.value.__cause__ is None
    return str(refused.value)
