"""TLS between here and a broker: is it spoken on both sides, is the certificate right, and for how long."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

from tallystick.cli.doctor.finding import Finding
from tallystick.core.addresses import BrokerAddress
from tallystick.credentials.tls import EXPIRED, NOT_YET, OTHER_NAMES

ANSWER_SECONDS = 2.0
FEW_DAYS = 14
_GET = b"GET /healthz HTTP/1.1\r\nHost: doctor\r\nConnection: close\r\n\r\n"


def look_at_tls(place: BrokerAddress, trusting: ssl.SSLContext) -> Iterator[Finding]:
    """Nothing if nobody answers there: that is told elsewhere. `trusting` is what the broker is to be reached with."""
    try:
        yield from _encrypted(place, trusting) if place.scheme == "https" else _plain(place)
    except ssl.SSLError as error:
        yield Finding("TLS", "problem", f"no TLS with {place.authority}: {error}", "see the broker's log")
    except OSError:
        return


def _plain(place: BrokerAddress) -> Iterator[Finding]:
    said = _answer(place, None)
    if said.startswith(b"HTTP/1.") and b" 400 " not in said[:20]:
        return
    try:
        _answer(place, _unverified())
    except ssl.SSLError:
        return
    text = f"{place.authority} speaks TLS, and was asked in plain http"
    yield Finding("TLS", "problem", text, f"its address begins with https://: --url https://{place.authority}")


def _encrypted(place: BrokerAddress, trusting: ssl.SSLContext) -> Iterator[Finding]:
    try:
        shown = _certificate(place, trusting)
    except ssl.SSLCertVerificationError as error:
        yield _not_verified(place, trusting, error)
        return
    except (ssl.SSLError, ConnectionResetError) as error:
        yield _no_tls(place, error)
        return
    yield _validity(shown)
    if not _ends_well(place, trusting):
        advice = "with `tls_client_required` it takes only clients with a certificate of a CA in `tls_client_ca`"
        yield Finding("TLS", "problem", "the broker ends the connection after the greeting", advice)


def _ends_well(place: BrokerAddress, trusting: ssl.SSLContext) -> bool:
    """With TLS 1.3 a client learns after its part of the greeting that its certificate is missed, or does not count."""
    try:
        return _answer(place, trusting) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def _no_tls(place: BrokerAddress, error: OSError) -> Finding:
    if _answer(place, None).startswith(b"HTTP/1."):
        text = f"{place.authority} speaks plain http, and was asked over TLS"
        advice = f"--url http://{place.authority}, or give the broker tls_cert and tls_key"
        return Finding("TLS", "problem", text, advice)
    return Finding("TLS", "problem", f"no TLS with {place.authority}: {error}", "see the broker's log")


def _not_verified(place: BrokerAddress, trusting: ssl.SSLContext, error: ssl.SSLCertVerificationError) -> Finding:
    code, why = error.verify_code, error.verify_message
    if code in OTHER_NAMES:
        text = f"the certificate is for {_whom_for(place, trusting)}, not for {place.host}"
        return Finding(
            "TLS", "problem", text, "name the broker as its certificate does, or have one made for this name"
        )
    if code in (EXPIRED, NOT_YET):
        text = f"the certificate is not valid now: {why}"
        return Finding("TLS", "problem", text, "put a new one in the place of tls_cert and tls_key: the broker sees it")
    text = f"the certificate is of a CA that is not trusted here: {why}"
    return Finding(
        "TLS",
        "problem",
        text,
        "trust the CA of the broker's certificate: --ca-file or TALLYSTICK_CA_FILE names its file",
    )


def _whom_for(place: BrokerAddress, trusting: ssl.SSLContext) -> str:
    trusting.check_hostname = False
    try:
        return ", ".join(_names(_certificate(place, trusting))) or "nobody"
    except OSError:  # its name is not all that is wrong with it
        return "somebody else"
    finally:
        trusting.check_hostname = True


def _validity(shown: dict[str, Any]) -> Finding:
    days = int((ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()) // 86_400)
    text = f"the certificate is for {', '.join(_names(shown)) or 'nobody'}, and valid for {days} more days"
    if days >= FEW_DAYS:
        return Finding("TLS", "ok", text)
    return Finding(
        "TLS", "note", text, "renew it soon: put the new files in the place of the old, the broker sees them"
    )


def _names(shown: dict[str, Any]) -> list[str]:
    return [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]


def _certificate(place: BrokerAddress, context: ssl.SSLContext) -> dict[str, Any]:
    with (
        socket.create_connection((place.host, place.port), ANSWER_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=place.host) as made,
    ):
        return dict(made.getpeercert() or {})


def _answer(place: BrokerAddress, context: ssl.SSLContext | None) -> bytes:
    """The first words of the answer to a small request."""
    with socket.create_connection((place.host, place.port), ANSWER_SECONDS) as plain:
        if context is None:
            plain.sendall(_GET)
            return _first(plain)
        with context.wrap_socket(plain, server_hostname=place.host) as made:
            made.sendall(_GET)
            return _first(made)


def _first(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_000)
    except ConnectionResetError:
        return b""


def _unverified() -> ssl.SSLContext:
    """To find out whether TLS is spoken at all; nothing that matters is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
