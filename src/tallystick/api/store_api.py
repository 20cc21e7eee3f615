"""Every protocol over HTTP, for the broker of one store."""

from __future__ import annotations

from tallystick.api.dtm.http import PREFIX as DTM_PREFIX
from tallystick.api.dtm.http import DtmHttp
from tallystick.api.http.native import NativeApi
from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.broker.broker import Broker


class StoreApi:
    """An ASGI application."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.door = broker, broker.door()
        self._native, self._dtm = NativeApi(self.door), DtmHttp(self.door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(DTM_PREFIX):
            await self._dtm(scope, receive, send)
        else:
            await self._native(scope, receive, send)
