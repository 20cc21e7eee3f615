"""TLS as a client of brokers needs it: whom it believes, what it shows of itself, and failures in words that help.

`ssl` is imported where https is used, and nowhere else.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from tallystick.core.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl

WHICH_CA = "name the CA's file with ca= (--ca-file, option caFile) or TALLYSTICK_CA_FILE"
WHICH_CERTIFICATE = "name its file with cert= and key= (--cert-file, --key-file) or TALLYSTICK_CERT_FILE"

# OpenSSL's numbers of what is wrong with a certificate.
EXPIRED, NOT_YET = 10, 9
OTHER_NAMES = (62, 64)
_UNKNOWN_CAS = (2, 18, 19, 20, 21, 24, 27)

_BY_REASON = {
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS: is its address http://, and not https://?",
    "HTTP_REQUEST": "what answers there speaks no TLS: is its address http://, and not https://?",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS of version 1.2 or newer",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no TLS of version 1.2 or newer",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"it wants a client certificate: {WHICH_CERTIFICATE}",
    "TLSV1_ALERT_UNKNOWN_CA": f"it does not believe the CA of our client certificate: {WHICH_CERTIFICATE}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our client certificate has expired: put a new one into its file",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"it refuses our client certificate: {WHICH_CERTIFICATE}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"it may want a client certificate: {WHICH_CERTIFICATE}",
}


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Names are verified, and nothing older than TLS 1.2 is spoken. With a CA of one's own, no other is believed."""
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as failure:  # also what OpenSSL says of it
        raise InvalidRequest(f"ca: {ca} cannot be used ({_words(failure)}); a PEM file is needed", field="ca") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert:
        _show_certificate(context, cert, key)
    return context


def _show_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    try:
        # Without this, OpenSSL would ask the terminal for the passphrase of a key that has one.
        context.load_cert_chain(cert, key or None, password=lambda: "")
    except (OSError, ValueError) as failure:
        files = f"{cert} and {key}" if key else cert
        raise InvalidRequest(
            f"cert: {files} cannot be used ({_words(failure)}); needed are the certificate and its key as PEM, the key "
            "without a passphrase",
            field="cert",
        ) from None


def hang_up(connection: socket.socket) -> None:
    """End what another thread sends or waits for. With TLS, the socket's own `shutdown` would first forget that there
    is any: what that thread sends in this moment would go out in plain text, with the token in it."""
    with suppress(OSError):  # it may have ended by itself
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def is_distrust(failure: BaseException) -> bool:
    """Whether a certificate was not believed: trying again in a moment finds the same one."""
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(failure, ssl.SSLCertVerificationError)


def is_lasting(failure: BaseException) -> bool:
    """Whether TLS fails in the same way until a certificate, a name or an address is changed: a retry is useless."""
    return is_distrust(failure) or getattr(failure, "reason", None) in _BY_REASON


def failure_in_words(failure: BaseException) -> str:
    """Why a connection failed. If TLS is the reason: what that means, and what to do about it."""
    ssl = sys.modules.get("ssl")
    if ssl is None or not isinstance(failure, ssl.SSLError):
        return str(failure)
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _distrust(failure.verify_code, failure.verify_message)
    meaning = _BY_REASON.get(failure.reason or "")
    return f"TLS: {meaning} ({_words(failure)})" if meaning else f"TLS: {_words(failure)}"


def _distrust(code: int, message: str) -> str:
    if code == EXPIRED:
        return "TLS: its certificate has expired; the broker needs a new one"
    if code == NOT_YET:
        return "TLS: its certificate is not valid yet; is the clock of this machine right?"
    if code in OTHER_NAMES:
        return f"TLS: its certificate is for another name ({message}); use an address that the certificate names"
    if code in _UNKNOWN_CAS:
        return f"TLS: its certificate is from a CA that is not known here ({message}); {WHICH_CA}"
    return f"TLS: its certificate is not believed ({message}); {WHICH_CA}"


def _words(failure: Exception) -> str:
    return getattr(failure, "reason", None) or getattr(failure, "strerror", None) or str(failure)
