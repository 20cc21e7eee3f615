"""What a call over gRPC shows of who makes it."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

import grpc

from tallystick.api.serving.peer_names import has_passed, readable
from tallystick.core.access import Evidence

Context = grpc.aio.ServicerContext[bytes, bytes]

_PEER_NAMES = {"x509_common_name": "CN=", "peer_dns": "DNS:", "peer_uri": "URI:", "peer_email": "EMAIL:"}


def grpc_evidence(context: Context) -> Evidence:
    """A certificate that has expired since the connection was made counts no longer."""
    said = dict(context.invocation_metadata() or ()).get("authorization", "")
    shown = context.auth_context() or {}
    names = [
        kind + value.decode("utf-8", "replace") for key, kind in _PEER_NAMES.items() for value in shown.get(key, ())
    ]
    if names and any(has_passed(_expires_at(pem)) for pem in shown.get("x509_pem_cert", ())):
        names = []
    return Evidence(said if isinstance(said, str) else "", address_of(context), readable(names))


@lru_cache(1_000)
def _expires_at(pem: bytes) -> float:
    """Kept, because each call shows the certificate of its connection anew."""
    from cryptography import x509  # late: a broker without TLS starts without it

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def address_of(context: Context) -> str:
    """Where a call comes from: gRPC says ipv4:10.0.0.1:5000, or ipv6:%5B::1%5D:5000."""
    kind, _, place = unquote(context.peer() or "").partition(":")
    return place.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""
