"""A real broker process for tests: `with running_broker(check_after="1s") as broker: broker.url`.

Settings are those of the broker's configuration, as text, list or dict. The process keeps its ports and its data
over `kill9()` and `restart()`, and is gone at the end whatever happens, even if the tests themselves are killed.
It speaks gRPC only when asked to (`grpc=True`), at `broker.grpc`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fork_server import Child, ForkServer, lasting_fork_server

START_SECONDS = 30.0
STOP_SECONDS = 20.0

# Its standard input is a pipe that only the tests hold: when they end, in whatever way, so does the broker.
_PROGRAM = """
import os, threading
def watch():
    os.read(0, 1)  # not by sys.stdin: its lock, held by a thread, would abort a clean end
    os._exit(86)
threading.Thread(target=watch, daemon=True).start()
exec(os.environ.pop("BROKER_PRELUDE", ""))
from tallystick.api.server import serve
from tallystick.broker.config import load_config
serve(load_config())
"""

# What the process has imported from which brokers are forked: the broker, and what it imports when it needs it.
_MODULES = ("brokers", "tallystick.api.server", "tallystick.broker.config", "aiohttp", "grpc", "pyarrow")


class BrokerProcess:
    """One broker and its directory. Safe to use from several threads, one call at a time."""

    def __init__(self, directory: Path, settings: dict[str, Any], prefix: list[str], prelude: str) -> None:
        self.directory, self.prefix, self.prelude = directory, prefix, prelude
        self.data_dir = Path(settings.get("data_dir", directory / "data"))
        self.log = directory / "broker.log"
        self.port = int(settings.get("port", 0)) or _free_port()
        self.grpc_port = int(settings.get("grpc_port", 0)) or _free_port()
        places = {"data_dir": self.data_dir, "port": self.port, "grpc_port": self.grpc_port}
        self.settings: dict[str, Any] = {"grpc": False, **settings, **places}
        self.process: subprocess.Popen[bytes] | Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc(self) -> str:
        """Where its gRPC port is, as gRPC clients name it."""
        assert self.settings["grpc"], "the broker was not asked to speak gRPC"
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        """Start the process and do not wait for it to be ready."""
        assert not self.running, "the broker is running already"
        self.process = self._executed() if self.prefix or self.prelude else self._forked()

    def _forked(self) -> Child:
        return _fork_server().start(
            "brokers:run_forked",
            as_program=True,
            directory=self.directory,
            stdout=self.log,
            stderr=self.log,
            environment={**os.environ, **_variables(self.settings)},
        )

    def _executed(self) -> subprocess.Popen[bytes]:
        """Started as a program, for what has to be there before the first import."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.prefix, sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **_variables(self.settings), "BROKER_PRELUDE": self.prelude},
                cwd=self.directory,
            )

    def start(self) -> BrokerProcess:
        self.spawn()
        self.wait_ready()
        return self

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while self.get("/readyz") != 200:
            if not self.running or time.monotonic() > deadline:
                ended = self.process.poll() if self.process else None
                raise RuntimeError(f"the broker did not start (exit code {ended}):\n{self.log_text()[-6000:]}")
            time.sleep(0.02)

    def ends_before_ready(self, seconds: float = START_SECONDS) -> bool:
        """Wait for one or the other: True if the process ended, False once it takes work."""
        try:
            self.wait_ready(seconds)
        except RuntimeError:
            return not self.running
        return False

    def get(self, path: str) -> int | None:
        """The status of a GET, or None if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the process to end by itself; its exit code."""
        assert self.process is not None
        code = self.process.wait(seconds)
        if isinstance(self.process, subprocess.Popen) and self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def kill9(self) -> None:
        """End it as a power cut of the process: nothing gets a chance to finish."""
        if self.process is not None:
            self.process.kill()
            self.wait()

    def terminate(self) -> None:
        """Send SIGTERM and return at once."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> int:
        """End it with SIGTERM; its exit code."""
        if not self.running:
            return self.wait()
        self.terminate()
        try:
            return self.wait()
        except (subprocess.TimeoutExpired, TimeoutError):
            self.kill9()
            raise RuntimeError(f"the broker did not stop within {STOP_SECONDS} s:\n{self.log_text()[-6000:]}") from None

    def restart(self, **settings: Any) -> BrokerProcess:
        """Start it again on the same port and data, after `kill9()` or, if it still runs, after a `stop()`."""
        if self.running:
            self.stop()
        self.settings.update(settings)
        return self.start()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@contextlib.contextmanager
def running_broker(
    directory: Path | None = None,
    prefix: list[str] | None = None,
    prelude: str = "",
    start: bool = True,
    **settings: Any,
) -> Iterator[BrokerProcess]:
    """A broker process on a free loopback port. `directory` (default: a temporary one) holds its data and log;
    `prefix` is put before the command (strace and the like), `prelude` is Python that runs in the process before
    the broker does (to seed a fault); `start=False` leaves starting it to the caller."""
    own = Path(tempfile.mkdtemp(prefix="tallystick-")) if directory is None else directory
    broker = BrokerProcess(own, settings, prefix or [], prelude)
    try:
        yield broker.start() if start else broker
    finally:
        if broker.process is not None:
            broker.kill9()
        if directory is None:
            shutil.rmtree(own, ignore_errors=True)


def run_forked(_: dict[str, Any]) -> None:
    """The work of a broker's process, once its environment is set."""
    from tallystick.api.server import serve
    from tallystick.broker.config import load_config

    serve(load_config())


@functools.cache
def _fork_server() -> ForkServer:
    return lasting_fork_server(*_MODULES)


def _variables(settings: dict[str, Any]) -> dict[str, str]:
    """Settings as the environment variables of a broker; the free space it insists on is no test's business."""
    return {f"TALLYSTICK_{name.upper()}": _text(value) for name, value in {"min_free_bytes": 0, **settings}.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
