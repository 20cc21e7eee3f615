"""Running a broker: ports, signals, and a clean end."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from tallystick.api.app import App, OwnStore, Service
from tallystick.api.serving import sockets as listening
from tallystick.api.serving.http1 import Http1Connection
from tallystick.api.serving.logs import set_up_logs
from tallystick.broker.broker import Broker
from tallystick.broker.config import Config
from tallystick.broker.door import BrokerDoor

if TYPE_CHECKING:
    from tallystick.api.serving.grpc import GrpcServer

log = logging.getLogger("tallystick")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_GIVE_BACK_SECONDS = 10.0


class Server(uvicorn.Server):
    """Uvicorn, with a start and an end that suit a broker.

    The first signal sends the long polls home (otherwise each would hold the end up), and a drained broker ends with
    exit code 0. A start that fails is told once, by whoever called `serve`, not as a traceback in the log.
    """

    def __init__(
        self, config: uvicorn.Config, app: App, grpc: GrpcServer | None, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._app, self._grpc = app, grpc
        self._on_listening = on_listening
        self.failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = False  # to end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        uvicorn_log = logging.getLogger("uvicorn")
        uvicorn_log.setLevel(logging.CRITICAL)
        try:
            await super().startup(sockets)
        except SystemExit:  # the lifespan failed; `serve` has the reason
            self.should_exit = True
            return
        except OSError as error:  # another process began to listen on the port since it was bound
            self.failure, self.should_exit = error, True
            await self.lifespan.shutdown()
            return
        finally:
            uvicorn_log.setLevel(logging.WARNING)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Both ports at once: one after the other, what is under way could take twice the drain timeout.
        await asyncio.gather(_stop(self._grpc), super().shutdown(sockets))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not handed on: uvicorn would raise the signal again after the clean end, which looks like a crash.
        again, self._told = self._told, True
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
    sockets = listening.bind(config.host, config.port)
    reserved: list[socket.socket] = []
    try:
        if config.grpc:
            reserved = listening.bind(config.host, config.grpc_port, "grpc_port")
        _run(config, sockets, reserved, on_ready)
    finally:
        listening.close(sockets + reserved)


def _run(
    config: Config, sockets: list[socket.socket], reserved: list[socket.socket], on_ready: Callable[[str], None] | None
) -> None:
    failed: list[Exception] = []
    url = f"http://{listening.place_of(sockets, config.host)}"
    grpc_place = listening.place_of(reserved, config.host) if reserved else ""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Service]:
        try:
            async with _service(config, url, grpc_place) as (service, door):
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
    grpc = _grpc_server(config, reserved)
    app = App(opened)
    server = Server(_settings(app, config), app, grpc, tell)
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


def _grpc_server(config: Config, reserved: list[socket.socket]) -> GrpcServer | None:
    if not reserved:
        return None
    from tallystick.api.serving.grpc import GrpcServer  # late: gRPC is large, and may be switched off

    return GrpcServer(reserved, config.max_request_bytes, config.max_long_polls, config.drain_timeout / 1000)


@asynccontextmanager
async def _service(config: Config, url: str, grpc_place: str) -> AsyncIterator[tuple[Service, BrokerDoor]]:
    if config.shared:
        from tallystick.api.cluster.service import cluster_service  # late: a broker of its own does without

        async with cluster_service(config, url, grpc_place) as found:
            yield found
        return
    broker = Broker(config)
    try:
        yield OwnStore(broker), broker.door()
    finally:
        await broker.close()


async def _start(grpc: GrpcServer | None, door: BrokerDoor, config: Config) -> None:
    if grpc is None:
        return
    from tallystick.api.dtm.grpc.service import dtm_service  # late, as above

    try:
        await grpc.start([dtm_service(door)])
    except BaseException as error:
        await _stop(grpc)
        if isinstance(error, OSError):
            raise listening.cannot_listen(f"{config.host}:{config.grpc_port}", error, "grpc_port") from error
        raise


async def _stop(grpc: GrpcServer | None) -> None:
    if grpc is not None:
        await grpc.stop()


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
        # Longer than clients keep an idle connection: if both end it at once, a request is lost between them.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, config.drain_timeout // 1000),
    )
