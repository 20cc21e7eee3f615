"""Running a broker: logs, signals, and a clean end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn

from tallystick.api.http.app import App
from tallystick.broker.broker import Broker
from tallystick.broker.config import Config
from tallystick.core.errors import TallystickError

log = logging.getLogger("tallystick")


def set_up_logs(config: Config) -> None:
    """One handler for everything; lines for people or JSON for programs."""
    before: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    shown: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if config.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    finish: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if config.log_format == "json":
        finish.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=[*finish, shown]))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class Server(uvicorn.Server):
    """Uvicorn, but the first signal also sends the long polls home: otherwise each would hold the end up."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._app.broker is not None and not self._app.broker.draining:
            log.info("draining: no new work, finishing what was accepted")
            self._app.broker.drain()
        super().handle_exit(sig, frame)


def serve(config: Config, on_ready: Callable[[str], None] | None = None) -> None:
    """Run a broker until a signal ends it."""
    set_up_logs(config)
    failed: list[TallystickError] = []

    def open_broker() -> Broker:
        try:
            broker = Broker(config)
        except TallystickError as error:
            failed.append(error)
            raise
        url = f"http://{config.host}:{config.port}"
        log.info("store %s in %s, listening on %s", broker.store.id, config.data_dir, url)
        if on_ready is not None:
            on_ready(url)
        return broker

    app = App(open_broker)
    server = Server(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=max(1, config.drain_timeout // 1000),
        ),
        app,
    )
    server.run()
    if failed:
        raise failed[0]
    if not server.started:
        raise TallystickError(f"the broker could not listen on {config.host}:{config.port}; is the port in use?")
