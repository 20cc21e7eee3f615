"""What a client shows to brokers, and whom it believes: a token, a client certificate, the file of a CA.

One piece of code for the client library, the command line and Spark. Only the code that
sends a token knows it: it is in no repr, no error, no local variable of a frame that an error passes through, and in
no pickle.
What travels to Spark's executors is where a token is found, and never the token.
"""

from __future__ import annotations

import base64
import logging
import os
from typing import TYPE_CHECKING, Self

from tallystick.changing_file import MadeOfFiles
from tallystick.core.addresses import BrokerAddress
from tallystick.core.errors import Forbidden, InvalidRequest, TallystickError, Unauthenticated
from tallystick.credentials.tls import client_context
from tallystick.credentials.tokens import (
    TOKEN,
    TOKEN_FILE,
    SecretToken,
    TokenFile,
    TokenSource,
    TokenVariable,
)

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("tallystick.client")

CA_FILE, CERT_FILE, KEY_FILE = "TALLYSTICK_CA_FILE", "TALLYSTICK_CERT_FILE", "TALLYSTICK_KEY_FILE"
SHOW_A_TOKEN = (
    f"give one that the broker knows: {TOKEN} or {TOKEN_FILE} in the environment, or its file "
    "(token_file=, --token-file, option tokenFile)"
)

OF_A_PROXY: dict[int, type[TallystickError]] = {401: Unauthenticated, 403: Forbidden}
"""What is told from an answer's number alone: who refuses to hand on a request has not let anybody act on it."""

FilePath = str | os.PathLike[str]

_told_of_plain: set[str] = set()
"""Hosts that a token was sent to without TLS, of which the log has been told."""


class Credentials:
    """What one client shows and whom it believes. Nothing is looked up here: see `find_credentials`."""

    def __init__(self, token: TokenSource | None = None, *, ca: str = "", cert: str = "", key: str = "") -> None:
        self._token = token
        self.ca, self.cert, self.key = ca, cert, key
        self._tls: MadeOfFiles[ssl.SSLContext] | None = None
        self._system = ""  # where the system's CAs were when it was made

    @property
    def token_file(self) -> str:
        """Where the token is, if it is in a file."""
        return repr(self._token) if isinstance(self._token, TokenFile) else ""

    @property
    def travels(self) -> bool:
        """Whether other processes can have the token as well: one that was given as such stays in this one."""
        return not isinstance(self._token, SecretToken)

    def without_token(self) -> Credentials:
        return Credentials(ca=self.ca, cert=self.cert, key=self.key)

    def check(self) -> Self:
        """Have what is wrong found here, and not at the first request."""
        self.token()
        for named, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path and not os.access(path, os.R_OK):
                raise InvalidRequest(f"{named}: {path} is no file that can be read", field=named)
        if self.ca or self.cert:
            self.tls()
        return self

    def token(self) -> SecretToken | None:
        """The token as it is now. The same object, as long as it is the same token."""
        return None if self._token is None else self._token.current()

    def authorization(self, address: BrokerAddress) -> str:
        """The value of the header, or nothing. A token wins over the login that an address may have."""
        if self._token is not None:
            _tell_of_plain(address)
            return f"Bearer {self._token.current().reveal()}"
        if address.login is not None:
            return f"Basic {base64.b64encode(':'.join(address.login).encode()).decode()}"
        return ""

    def tls(self) -> ssl.SSLContext:
        """Made when it is first needed, since it reads every certificate of the system, and again when one of our own
        files has changed. While these do not fit each other, since they are just being exchanged, it is the last one
        that did."""
        system = os.environ.get("SSL_CERT_FILE", "")  # OpenSSL's own
        if self._tls is None or system != self._system:
            self._system = system
            files = self.ca, self.cert, self.key, system
            self._tls = MadeOfFiles("the files of TLS", filter(None, files), self._context, look_seconds=0.0)
        return self._tls.value

    def _context(self) -> ssl.SSLContext:
        return client_context(self.ca, self.cert, self.key)

    def _told(self) -> tuple[TokenSource | None, str, str, str]:
        return self._token, self.ca, self.cert, self.key

    def __repr__(self) -> str:
        token, ca, cert, key = self._told()
        return f"Credentials({token!r}, {ca=}, {cert=}, {key=})"

    def __getstate__(self) -> tuple[TokenSource | None, str, str, str]:
        return self._told()

    def __setstate__(self, told: tuple[TokenSource | None, str, str, str]) -> None:
        self._token, self.ca, self.cert, self.key = told
        self._tls, self._system = None, ""


NO_CREDENTIALS = Credentials()


def find_credentials(
    token: SecretToken | None = None,
    *,
    token_file: FilePath | None = None,
    ca: FilePath | None = None,
    cert: FilePath | None = None,
    key: FilePath | None = None,
) -> Credentials:
    """What was given, and what the environment says where nothing was; looked at, so that it can be used."""
    return Credentials(
        _source(token, _path(token_file)),
        ca=_path(ca) or os.environ.get(CA_FILE, ""),
        **_pair(_path(cert), _path(key)),
    ).check()


def _source(token: SecretToken | None, file: str) -> TokenSource | None:
    if token is not None and file:
        raise InvalidRequest("token and token_file: give one of them", field="token_file")
    if token is not None:
        return token.checked("token")
    if file:
        return TokenFile(file)
    in_file = os.environ.get(TOKEN_FILE, "")
    if os.environ.get(TOKEN):
        if in_file:
            raise InvalidRequest(f"{TOKEN} and {TOKEN_FILE} are both set: unset one of them", field="token")
        return TokenVariable(TOKEN)
    return TokenFile(in_file) if in_file else None


def _pair(cert: str, key: str) -> dict[str, str]:
    """A certificate and its key are from one place: what was given, or else the environment."""
    if not (cert or key):
        cert, key = os.environ.get(CERT_FILE, ""), os.environ.get(KEY_FILE, "")
    if key and not cert:
        raise InvalidRequest(f"key: there is no certificate for it; give cert= or {CERT_FILE}", field="key")
    return {"cert": cert, "key": key}


def _path(given: FilePath | None) -> str:
    return "" if given is None else os.fspath(given)


def _tell_of_plain(address: BrokerAddress) -> None:
    """Many clusters are behind a mesh that encrypts, so this is a warning and no error."""
    if address.scheme == "https" or address.loopback or address.host in _told_of_plain:
        return
    _told_of_plain.add(address.host)
    log.warning(
        "a token is sent to %s without TLS: anyone who reads the traffic can use it. Use https://, unless the network "
        "itself encrypts",
        address.authority,
    )


def advised(error: TallystickError) -> TallystickError:
    """The error, with what to do where the broker does not know who asks."""
    if isinstance(error, Unauthenticated) and SHOW_A_TOKEN not in error.detail:
        return Unauthenticated(f"{error.detail.rstrip('.')}; {SHOW_A_TOKEN}", field=error.field, **error.extra)
    return error
