"""Just enough of a web framework: POST requests, answered with JSON.

At thousands of requests a second a larger one would cost more than what the services do. Any framework would do
otherwise.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Post = Callable[[Scope, bytes], Awaitable[tuple[int, bytes]]]
"""From the request's scope and body to the answer's status and body."""


class Service:
    """`post` answers every POST; `other`, if given, all the rest. `life` is entered before the first request."""

    def __init__(self, post: Post, life: AbstractAsyncContextManager[Any], other: AsgiApp | None = None) -> None:
        self._post, self._life, self._other = post, life, other

    def serve(self, port: int) -> None:
        options: dict[str, Any] = {"proxy_headers": False, "server_header": False, "date_header": False}
        uvicorn.run(self, host="127.0.0.1", port=port, log_level="warning", access_log=False, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["method"] == "POST":
            await _answer(send, *await self._post(scope, await _body(receive)))
        elif self._other is not None:
            await self._other(scope, receive, send)
        else:
            await _answer(send, 404, b"{}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self._life:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
