"""ASGI applications, served for real: `with asgi_server(app) as url:`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn

from tallystick.local import free_port


@contextlib.contextmanager
def asgi_server(app: Any, lifespan: Literal["on", "off"] = "off", port: int = 0) -> Iterator[str]:
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", lifespan=lifespan, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
