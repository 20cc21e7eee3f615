"""Tallystick in a FastAPI application: clients that live as long as it does, as dependencies; check-back; consumers.

    ts = Tallystick(group="shop")                # the broker's address from TALLYSTICK_URL, unless it is given
    app = FastAPI(lifespan=ts.lifespan)

    @app.post("/orders/{item}")
    async def order(item: str, client: Annotated[AsyncClient, Depends(ts.get_async_client)]) -> None: ...

It only wires what `tallystick.client` has.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Unpack

import msgspec

from tallystick.client import AsyncClient, CheckBack, Client, Verifier, handlers
from tallystick.client.base.arguments import check_truths
from tallystick.client.base.settings import DEFAULT_URL, ClientOptions, Decider, OpenConnection
from tallystick.client.consumers.subscribing import LaterSubscriptions
from tallystick.core.errors import TallystickError
from tallystick.credentials.tokens import hidden
from tallystick.extras import need

try:
    from fastapi import FastAPI
except ModuleNotFoundError:
    need("fastapi")
    raise

CHECK_PATH = "/tallystick/check"


class Tallystick(LaterSubscriptions):
    """The clients of one application.

    `urls`, `group` and the further options are those of `Client`; where `urls` or `group` is not given, TALLYSTICK_URL
    and TALLYSTICK_GROUP of the environment count, as they are when the lifespan begins. Nothing is opened before that,
    so that a server may fork. Handlers of `ts.subscribe` run in the lifespan, unless `consume` is False: then another
    process calls `run`.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        *,
        group: str | None = None,
        database: OpenConnection | None = None,
        consume: bool = True,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__()
        self._urls = urls
        self._group = group
        self._database = database
        self._consume = consume
        options["token"] = hidden(options.get("token"))
        check_truths(database, options)
        self._options = options
        self._async_client: AsyncClient | None = None
        self._client: Client | None = None
        self._making = threading.Lock()

    # The life of the application

    @asynccontextmanager
    async def lifespan(self, app: FastAPI | None = None) -> AsyncIterator[None]:
        """`FastAPI(lifespan=ts.lifespan)`, or `async with ts.lifespan(app):` in a lifespan of one's own."""
        async with self._open() as client:
            if self._consume:
                await client.start()
            yield

    async def run(self) -> None:
        """Run the consumers without a web server, until SIGTERM or SIGINT: `asyncio.run(ts.run())`."""
        async with self._open() as client:
            await client.run()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncClient]:
        if self._async_client is not None:
            raise TallystickError("the lifespan has begun already: make one Tallystick for each application")
        client = AsyncClient(self._address(), group=self._group_name(), database=self._database, **self._options)
        self._hand_over(client)
        try:
            async with client:
                self._async_client = client
                yield client
                await client.stop()
        finally:
            self._async_client = None
            blocking, self._client = self._client, None
            if blocking is not None:
                await asyncio.to_thread(blocking.close)

    # Clients

    @property
    def async_client(self) -> AsyncClient:
        """For coroutine functions; it lives on the event loop of the lifespan."""
        if self._async_client is None:
            raise TallystickError(
                "the lifespan has not begun: make the application with FastAPI(lifespan=ts.lifespan), and in tests use "
                "`with TestClient(app) as client:`"
            )
        return self._async_client

    @property
    def client(self) -> Client:
        """For plain functions, which FastAPI runs on threads; made at its first use."""
        with self._making:
            if self._client is None:
                self._client = Client(
                    self._address(), group=self._group_name(), database=self._database, **self._options
                )
            return self._client

    def _address(self) -> str | Iterable[str]:
        return self._urls or os.environ.get("TALLYSTICK_URL", DEFAULT_URL)

    def _group_name(self) -> str | None:
        return self._group or os.environ.get("TALLYSTICK_GROUP")

    # Coroutine functions, because FastAPI would run plain ones on a thread.

    async def get_async_client(self) -> AsyncClient:
        """A dependency: `Annotated[AsyncClient, Depends(ts.get_async_client)]`."""
        return self.async_client

    async def get_client(self) -> Client:
        """A dependency: `Annotated[Client, Depends(ts.get_client)]`."""
        return self.client

    # Check-back by URL

    def mount(
        self,
        app: FastAPI,
        path: str = CHECK_PATH,
        open_connection: OpenConnection | Decider | None = None,
        *,
        public_url: str | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Answer check-backs at a path of the application, from the database that `open_connection` leads to
        (default: the one that was given as `database`).

        `public_url` (or TALLYSTICK_PUBLIC_URL) is where the broker reaches the application: with it, the transactions
        of these clients are checked there. Without it, name the address in the `CheckBack` of each transaction. With a
        `verifier` (or that of TALLYSTICK_SIGNING_KEYS_FILE) only a broker is answered.
        """
        truth = open_connection or self._database
        if truth is None:
            raise TallystickError("mount: give open_connection, or Tallystick(database=...)")
        table: dict[str, Any] = {"table": self._options["barrier_table"]} if "barrier_table" in self._options else {}
        app.mount(path, handlers.asgi(truth, verifier=verifier, **table))
        address = public_url or os.environ.get("TALLYSTICK_PUBLIC_URL")
        if address:
            check = self._options.get("check") or CheckBack()
            # The slash: a mounted application answers below its path, and the broker follows no redirects.
            self._options["check"] = msgspec.structs.replace(check, url=f"{address.rstrip('/')}{path}/")
