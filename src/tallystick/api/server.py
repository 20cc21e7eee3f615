"""Running a broker: ports, signals, and a clean end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from prometheus_client.registry import Collector

from tallystick.api.app import App, OwnStore, Service
from tallystick.api.serving import sockets as listening
from tallystick.api.serving.accepting import Acceptor, make_room
from tallystick.api.serving.crowd import ConnectionPlace, Crowd
from tallystick.api.serving.http1 import ClientPatience, Http1Connection
from tallystick.api.serving.logs import set_up_logs
from tallystick.api.serving.tls import Tls
from tallystick.broker.broker import Broker
from tallystick.broker.config import Config
from tallystick.broker.door import BrokerDoor
from tallystick.core.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.api.serving.grpc import GrpcServer

log = logging.getLogger("tallystick")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_GIVE_BACK_SECONDS = 10.0


class Entrance(NamedTuple):
    """How connections are taken."""

    crowd: Crowd
    tls: Tls
    patience: ClientPatience
    handshake_seconds: float


class Server(uvicorn.Server):
    """Uvicorn, with a start and an end that suit a broker.

    It takes its connections by itself: uvicorn has no limits for them. The first signal sends the long polls home
    (otherwise each would hold the end up), and a drained broker ends with exit code 0. A start that fails is told once,
    by whoever called `serve`, not as a traceback in the log.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        app: App,
        entrance: Entrance,
        grpc: GrpcServer | None,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app, self._entrance, self._grpc = app, entrance, grpc
        self._on_listening = on_listening
        self.failure: OSError | None = None
        self.servers = []  # of uvicorn's own kind: none
        self._acceptors: list[Acceptor] = []
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = False  # to end
        self._told_at = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        uvicorn_log = logging.getLogger("uvicorn")
        uvicorn_log.setLevel(logging.CRITICAL)
        await self.lifespan.startup()
        uvicorn_log.setLevel(logging.WARNING)
        if self.lifespan.should_exit:  # it failed; `serve` has the reason
            self.should_exit = True
            return
        try:
            for one in sockets or ():
                self._acceptors.append(self._acceptor(one))
        except OSError as error:  # another process began to listen on the port since it was bound
            self.failure, self.should_exit = error, True
            await self._close_doors()
            await self.lifespan.shutdown()
            return
        self._watch_certificates()
        self.started = True
        self._on_listening()

    def _acceptor(self, listening: socket.socket) -> Acceptor:
        crowd, tls, patience, handshake_seconds = self._entrance

        def connection(place: ConnectionPlace) -> Http1Connection:
            return Http1Connection(self._app, self.server_state, patience, place)

        return Acceptor(listening, connection, crowd, tls.server, handshake_seconds)

    def _watch_certificates(self) -> None:
        tls, told = self._entrance.tls, asyncio.Event()
        if tls.has_files:
            self._watching = asyncio.create_task(tls.watch(told), name="certificates")
            if self._loop is not None and threading.current_thread() is threading.main_thread():
                self._loop.add_signal_handler(signal.SIGHUP, told.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._close_doors()
        # The stores were handed over in the same time: `drain_timeout` bounds all steps of the end together.
        whole = self.config.timeout_graceful_shutdown or 0
        left = max(1, math.ceil(whole - (time.monotonic() - self._told_at))) if self._told else whole
        self.config.timeout_graceful_shutdown = left
        # Both ports at once: one after the other, what is under way could take twice the drain timeout.
        await asyncio.gather(_stop(self._grpc, left), super().shutdown(sockets))

    async def _close_doors(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(acceptor.stop() for acceptor in self._acceptors))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on: uvicorn would raise the signal again after the clean end, which looks like a crash.
        again, self._told = self._told, True
        if not again:
            self._told_at = time.monotonic()
        self.force_exit = self.force_exit or (again and sig == signal.SIGINT)
        if self._app.service is None or self._loop is None or self.force_exit:
            self._exit()
        else:
            self._loop.call_soon_threadsafe(self._app.service.end, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def serve(config: Config, on_ready: Callable[[str], None] | None = None) -> None:
    """Run a broker until a signal ends it. `on_ready` gets its URL once it accepts connections."""
    set_up_logs(config.log_format, config.log_level)
    tls = Tls(config)
    make_room(config.max_connections)
    sockets = listening.bind(config.host, config.port)
    reserved: list[socket.socket] = []
    try:
        if config.grpc:
            reserved = listening.bind(config.host, config.grpc_port, "grpc_port")
        _refuse_to_be_open(config, sockets + reserved)
        _run(config, tls, sockets, reserved, on_ready)
    finally:
        listening.close(sockets + reserved)


def _refuse_to_be_open(config: Config, sockets: list[socket.socket]) -> None:
    """Whoever reaches a broker without access control may do everything: from elsewhere nobody does by chance."""
    if config.auth != "off" or config.allow_open:
        return
    places = (str(one.getsockname()[0]) for one in sockets)
    reached = [place for place in places if not ip_address(place.partition("%")[0]).is_loopback]
    if reached:
        raise ConfigError(
            f'host: whoever reaches {reached[0]} could do everything, because auth is off; set auth = "tokens" and '
            "make a token with `tallystick tokens create`, or listen on 127.0.0.1, or insist with allow_open = true",
            field="host",
        )


def _run(
    config: Config,
    tls: Tls,
    sockets: list[socket.socket],
    reserved: list[socket.socket],
    on_ready: Callable[[str], None] | None,
) -> None:
    failed: list[Exception] = []
    entrance = _entrance(config, tls)
    url = f"{'https' if tls.on else 'http'}://{listening.place_of(sockets, config.host)}"
    grpc_place = listening.place_of(reserved, config.host) if reserved else ""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Service]:
        try:
            async with _service(config, url, grpc_place, entrance) as (service, door):
                await _start(grpc, door, config)
                began.append(True)
                try:
                    yield service
                finally:
                    await _stop(grpc)
        except Exception as error:
            if not began:
                failed.append(error)
            raise

    def tell() -> None:
        also = f", gRPC on {grpc_place}" if reserved else ""
        log.info("%s, listening on %s%s", app.service.about if app.service else "", url, also)
        if on_ready is not None:
            on_ready(url)

    began: list[bool] = []
    _keep_memory()
    grpc = _grpc_server(config, reserved, tls)
    app = App(opened)
    server = Server(_settings(app, config), app, entrance, grpc, tell)
    # What is loaded now stays; and young garbage is rare here, because the structs of a request have no cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    server.run(sockets)
    if failed:
        raise failed[0]
    if server.failure is not None:
        raise listening.cannot_listen(f"{config.host}:{config.port}", server.failure)


def _keep_memory() -> None:
    """Let the C library keep some megabytes that are free: it would otherwise give a request's or a chunk's back to the
    kernel each time, and half of the broker's work would be to be given them again, page by page."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        library.mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)
        threading.Thread(target=_give_back, args=(library,), name="memory", daemon=True).start()


def _give_back(library: ctypes.CDLL) -> None:
    """Now and then, what has come together in between all the same: many slow readers at once leave much."""
    while True:
        time.sleep(_GIVE_BACK_SECONDS)
        library.malloc_trim(64 * 1024 * 1024)


def _entrance(config: Config, tls: Tls) -> Entrance:
    patience = ClientPatience(config.head_timeout / 1000, config.body_timeout / 1000, config.idle_timeout / 1000)
    crowd = Crowd(config.max_connections, config.max_connections_per_address)
    return Entrance(crowd, tls, patience, config.handshake_timeout / 1000)


def _grpc_server(config: Config, reserved: list[socket.socket], tls: Tls) -> GrpcServer | None:
    if not reserved:
        return None
    from tallystick.api.serving.grpc import GrpcLimits, GrpcServer  # late: gRPC is large, and may be switched off

    limits = GrpcLimits(
        config.max_request_bytes,
        config.max_long_polls,
        config.max_connections,
        config.handshake_timeout / 1000,
        config.drain_timeout / 1000,
        config.max_connections_per_address,
        config.body_timeout / 1000,
        config.idle_timeout / 1000,
    )
    return GrpcServer(reserved, limits, tls)


@asynccontextmanager
async def _service(
    config: Config, url: str, grpc_place: str, entrance: Entrance
) -> AsyncIterator[tuple[Service, BrokerDoor]]:
    numbers: list[Collector] = [entrance.crowd, entrance.tls]
    if config.shared:
        from tallystick.api.cluster.service import cluster_service  # late: a broker of its own does without

        async with cluster_service(config, url, grpc_place, entrance.tls, numbers) as found:
            yield found
        return
    broker = Broker(config)
    for one in numbers:
        broker.metrics.registry.register(one)
    broker.tell_access()
    try:
        yield OwnStore(broker), broker.door()
    finally:
        await broker.close()


async def _start(grpc: GrpcServer | None, door: BrokerDoor, config: Config) -> None:
    if grpc is None:
        return
    from tallystick.api.access.grpc import GrpcGate  # late, as above
    from tallystick.api.dtm.grpc.service import dtm_service

    try:
        await grpc.start([dtm_service(door)], GrpcGate(door).enter, door.answered)
    except BaseException as error:
        await _stop(grpc)
        if isinstance(error, OSError):
            raise listening.cannot_listen(f"{config.host}:{config.grpc_port}", error, "grpc_port") from error
        raise


async def _stop(grpc: GrpcServer | None, seconds: float | None = None) -> None:
    if grpc is not None:
        await grpc.stop(seconds)


def _settings(app: App, config: Config) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        loop="uvloop",
        http=Http1Connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=max(1, config.drain_timeout // 1000),
    )
