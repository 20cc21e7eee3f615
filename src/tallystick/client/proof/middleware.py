"""Around an application: what a broker has not signed does not come in."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

from tallystick.client.proof.requests import (
    MOST_BODY,
    PROVEN,
    Choose,
    Environ,
    Gone,
    Receive,
    Scope,
    prove_environ,
    prove_scope,
    read_body,
    read_input,
    received_again,
)
from tallystick.client.proof.verifier import Verifier, needed
from tallystick.core.errors import TallystickError, TooLarge, Unproven
from tallystick.core.wire import PROBLEM, Problem

log = logging.getLogger("tallystick.client")

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]


def verified_asgi(app: AsgiApp, verifier: Verifier | None = None, *, most_bytes: int = MOST_BODY) -> AsgiApp:
    """An ASGI application that gets the requests of a broker, and nobody else's: those are answered 401. Without a
    `verifier`, that of TALLYSTICK_SIGNING_KEYS_FILE. Bodies of more than `most_bytes` are answered 413."""
    found = needed(verifier)
    return asgi_if(lambda: found, app, most_bytes)


def verified_wsgi(app: WsgiApp, verifier: Verifier | None = None, *, most_bytes: int = MOST_BODY) -> WsgiApp:
    """The same for a WSGI application."""
    found = needed(verifier)
    return wsgi_if(lambda: found, app, most_bytes)


def asgi_if(choose: Choose, app: AsgiApp, most_bytes: int = MOST_BODY) -> AsgiApp:
    """Verified if there is a verifier, and nobody further out did it."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or PROVEN in scope:
            await app(scope, receive, send)
        elif scope["type"] != "http":
            await _close(scope, receive, send)
        else:
            await ask(scope, receive, send)

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        verifier = choose()
        receive_again = receive
        try:
            if verifier is not None:
                body = await prove_scope(verifier, scope, lambda: read_body(receive, most_bytes))
                receive_again = received_again(body, receive)
        except (Unproven, TooLarge) as refusal:
            await _send(send, *problem(refusal))
            return
        except Gone:
            return
        await app(scope, receive_again, send)

    return handle


def wsgi_if(choose: Choose, app: WsgiApp, most_bytes: int = MOST_BODY) -> WsgiApp:
    """The same for WSGI."""

    def handle(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        verifier = None if PROVEN in environ else choose()
        try:
            if verifier is not None:
                prove_environ(verifier, environ, lambda: read_input(environ, most_bytes))
        except (Unproven, TooLarge) as refusal:
            status, body = problem(refusal)
            headers = [("Content-Type", PROBLEM), ("Content-Length", str(len(body)))]
            start_response(f"{status} {HTTPStatus(status).phrase}", headers)
            return [body]
        return app(environ, start_response)

    return handle


def problem(refusal: TallystickError) -> tuple[int, bytes]:
    """What whoever is refused is told: the status and a body of `application/problem+json`."""
    log.info("a request was refused: %s", refusal.detail)
    title = (type(refusal).__doc__ or "").strip().splitlines()[0]
    return refusal.status, msgspec.json.encode(Problem(title, refusal.status, refusal.detail, refusal.code))


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", PROBLEM.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _close(scope: Scope, receive: Receive, send: Send) -> None:
    """A broker opens no web sockets."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
