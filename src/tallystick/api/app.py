"""The ASGI application of a broker: its lifespan, and which protocol a path belongs to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.dtm.http import DtmHttp
from tallystick.api.http.native import NativeApi
from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.broker.broker import Broker


class App:
    def __init__(self, open_broker: Callable[[], AbstractAsyncContextManager[Broker]]) -> None:
        self._open_broker = open_broker
        self.broker: Broker | None = None
        self._native: NativeApi | None = None
        self._dtm: DtmHttp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self._native is not None and self._dtm is not None  # noqa: S101, PT018 - requests come after the start
        if scope["path"].startswith(DTM_PREFIX):
            await self._dtm(scope, receive, send)
        else:
            await self._native(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            async with self._open_broker() as self.broker:
                # Callers are not told apart yet, so one door serves them all.
                door = self.broker.door()
                self._native, self._dtm = NativeApi(door), DtmHttp(door)
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
        except BaseException:
            await send({"type": f"lifespan.{'startup' if self._native is None else 'shutdown'}.failed", "message": ""})
            raise
        await send({"type": "lifespan.shutdown.complete"})
