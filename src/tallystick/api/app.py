"""The ASGI application of a broker: its lifespan around whatever answers the requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.api.store_api import StoreApi
from tallystick.broker.broker import Broker

log = logging.getLogger("tallystick")


class Service(Protocol):
    """What a broker process serves: one store of its own, or its share of a cluster."""

    @property
    def about(self) -> str:
        """In a few words, for the log."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def end(self, then: Callable[[], None]) -> None:
        """No new work; `then` is called once no request needs to be answered here any more. May be called again."""


class App:
    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Service]]) -> None:
        self._opened = opened
        self.service: Service | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self.service is not None  # noqa: S101 - requests come after the start
        await self.service(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            async with self._opened() as self.service:
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
        except BaseException:
            await send({"type": f"lifespan.{'startup' if self.service is None else 'shutdown'}.failed", "message": ""})
            raise
        await send({"type": "lifespan.shutdown.complete"})


class OwnStore(StoreApi):
    """A broker with one store that is nobody else's."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        config = broker.config
        where = f" in {config.data_dir}" if config.store == "rocksdb" else ""
        self.about = f"store {broker.door().store_id}{where}"

    def end(self, then: Callable[[], None]) -> None:
        if not self.broker.draining:
            log.info("draining: no new work, finishing what was accepted")
            self.broker.drain()
        then()
