"""What was signed of a request, found in the forms that servers give it: ASGI's scope, WSGI's environ.

The signature is over the path as it was sent. Frameworks take paths apart and put them together anew; what came over
the wire is in `raw_path` (ASGI), `RAW_URI` or `REQUEST_URI` (most WSGI servers). Without it the path is written as the
broker writes it, which is the same unless it has escapes that need not be there.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from tallystick.client.proof.verifier import Verifier, default_verifier
from tallystick.core.errors import TooLarge
from tallystick.core.signing import SIGNATURE_HEADER
from tallystick.core.urls import PATH_CHARACTERS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Environ = dict[str, Any]
Choose = Callable[[], Verifier | None]

MOST_BODY = 16 * 1024 * 1024
# Set by us on a request that was verified: what stands further in need not do it again, and could not, because a
# request passes once. No client can set it: its headers get other names.
PROVEN = "tallystick.proven"
_ASGI_NAME = SIGNATURE_HEADER.lower().encode()
_WSGI_NAME = f"HTTP_{SIGNATURE_HEADER.upper().replace('-', '_')}"


class Gone(Exception):
    """The other side hung up before its request was complete: there is nobody to answer."""


def chosen(verifier: Verifier | None) -> Choose:
    """The one that was given; else, when a request comes, that of the environment if it has one. A file of keys that
    cannot be read is found out now."""
    if verifier is None:
        default_verifier()
    return default_verifier if verifier is None else lambda: verifier


# ASGI


async def prove_scope(verifier: Verifier, scope: Scope, body: Callable[[], Awaitable[bytes]]) -> bytes:
    """The body of a request that a broker has sent, read if the rest of it may be true; `Unproven` if it was not."""
    given = [value for name, value in scope["headers"] if name.lower() == _ASGI_NAME]
    claimed = verifier.claim(given[0].decode("latin-1") if len(given) == 1 else _several(given))
    found = await body()
    verifier.prove(claimed, scope["method"], asgi_path(scope), found)
    scope[PROVEN] = True
    return found


def asgi_path(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    path = quote(scope["path"], safe=PATH_CHARACTERS) if not raw else raw.decode("latin-1").partition("?")[0]
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


async def read_body(receive: Receive, most: int) -> bytes:
    """All of it; it can be received once."""
    pieces: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Gone
        pieces.append(event.get("body", b""))
        size += len(pieces[-1])
        if size > most:
            raise _too_large(most)
        if not event.get("more_body", False):
            return b"".join(pieces)


def received_again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for somebody else to read; what comes after it comes as it would have."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> MutableMapping[str, Any]:
        return left.pop() if left else await receive()

    return receive_again


# WSGI


def prove_environ(verifier: Verifier, environ: Environ, body: Callable[[], bytes]) -> None:
    """`Unproven` unless a broker has sent this; the body is read if the rest of it may be true."""
    claimed = verifier.claim(environ.get(_WSGI_NAME))
    verifier.prove(claimed, environ["REQUEST_METHOD"], wsgi_path(environ), body())
    environ[PROVEN] = True


def prove_django(choose: Choose, request: Any) -> None:
    """The same for a request of Django's, of either kind of server; if it is to be proven at all."""
    environ, scope = request.META, getattr(request, "scope", {})
    verifier = None if PROVEN in environ or PROVEN in scope else choose()
    if verifier is not None:
        if scope:
            query = environ.get("QUERY_STRING", "").encode("latin-1", "replace")  # bytes, whatever the scope has
            environ["RAW_URI"] = asgi_path({**scope, "query_string": query})
        prove_environ(verifier, environ, lambda: request.body)


def wsgi_path(environ: Environ) -> str:
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if raw:
        return str(raw)
    # As Python's text of the bytes that were sent, and not of the characters that they stand for.
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}".encode("latin-1", "replace")
    query = environ.get("QUERY_STRING", "")
    asked = quote(path or b"/", safe=PATH_CHARACTERS)
    return f"{asked}?{query}" if query else asked


def read_input(environ: Environ, most: int) -> bytes:
    """The body, which may be read again; and it is all that there is to read for whoever comes next."""
    said = environ.get("CONTENT_LENGTH") or ""
    chunked = "chunked" in environ.pop("HTTP_TRANSFER_ENCODING", "").lower()
    if chunked or (not said and environ.get("wsgi.input_terminated")):
        body = _read_to_the_end(environ["wsgi.input"], most)
    else:
        length = int(said) if said.isascii() and said.isdigit() else 0
        if length > most:
            raise _too_large(most)
        body = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
    return body


def _read_to_the_end(given: Any, most: int) -> bytes:
    """Of a body that does not say how long it is. The server takes its chunks apart, and ends it."""
    pieces: list[bytes] = []
    left = most + 1
    while left and (piece := given.read(left)):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise _too_large(most)
    return b"".join(pieces)


def _several(given: list[bytes]) -> str | None:
    """None of several is better than another."""
    return "several" if given else None


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the body has more than {most} bytes; most_bytes says how many are verified")
