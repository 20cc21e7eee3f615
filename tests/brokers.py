"""A real broker process for tests: `with running_broker(check_after="1s") as broker: broker.url`.

Settings are those of the broker's configuration, as text, list or dict; those that are lists of tables are put into a
file. The process keeps its ports and its data
over `kill()` and `restart()`, and is gone at the end whatever happens, even if the tests themselves are killed.
It speaks gRPC only when asked to (`grpc=True`), at `broker.grpc`, and TLS when it is given `tls_cert`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fork_server import Child, ForkServer, lasting_fork_server
from tallystick.core.errors import TallystickError
from tallystick.local import START_SECONDS, LocalBroker, free_port

STOP_SECONDS = 90.0
CONFIG = "broker.toml"  # in the process's own directory

# Its standard input is a pipe that only the tests hold: when they end, in whatever way, so does the broker. (What the
# kernel does for a child when its parent dies would be done to the program before it, which is not the broker.)
_PROGRAM = """
import os, threading
def watch():
    os.read(0, 1)  # not by sys.stdin: its lock, held by a thread, would abort a clean end
    os._exit(86)
threading.Thread(target=watch, daemon=True).start()
exec(os.environ.pop("BROKER_PRELUDE", ""))
from pathlib import Path
from tallystick.api.server import serve
from tallystick.broker.config import load_config
file = Path("broker.toml")
serve(load_config(file if file.exists() else None))
"""

# What the process has imported from which brokers are forked: the broker, and what it imports when it needs it.
_MODULES = ("brokers", "tallystick.api.server", "tallystick.broker.config", "grpc", "pyarrow")

# Where only the client is installed, another interpreter has what a broker needs (tests/light), and finds it there.
PYTHON = os.environ.get("BROKER_PYTHON", sys.executable)
PATH = os.environ["BROKER_PATH"].split(os.pathsep) if "BROKER_PATH" in os.environ else sys.path


class BrokerProcess(LocalBroker):
    """One broker and its directory. Safe to use from several threads, one call at a time."""

    def __init__(
        self, directory: Path, settings: dict[str, Any], prefix: list[str] | None = None, prelude: str = ""
    ) -> None:
        self.prefix, self.prelude = prefix or [], prelude
        self.grpc_port = int(settings.get("grpc_port", 0)) or free_port()
        # The free space that it insists on is no test's business.
        tables = {name: value for name, value in settings.items() if _is_table(value)}
        plain = {name: value for name, value in settings.items() if name not in tables}
        super().__init__(directory, **{"min_free_bytes": 0, **plain, "grpc_port": self.grpc_port})
        if tables:
            self.write_tables(tables)
        self.data_dir = Path(str(self.settings["data_dir"]))

    def write_tables(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        """What only a file can hold, for the next start."""
        rows = (f"[[{name}]]\n{_fields(row)}" for name, table in tables.items() for row in table)
        (self.directory / CONFIG).write_text("\n".join(rows))

    @property
    def grpc(self) -> str:
        """Where its gRPC port is, as gRPC clients name it."""
        assert self.settings["grpc"], "the broker was not asked to speak gRPC"
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What the tests reach it with, as another broker of its cluster would: `tls_ca` is to be given to it."""
        if "tls_cert" not in self.settings:
            return None
        context = ssl.create_default_context(cafile=str(self.settings["tls_ca"]))
        if "tls_client_ca" in self.settings:
            context.load_cert_chain(str(self.settings["tls_cert"]), str(self.settings["tls_key"]))
        return context

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=self.tls) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def spawn(self) -> None:
        assert not self.running, "the broker is running already"
        super().spawn()

    def _launch(self, environment: dict[str, str]) -> subprocess.Popen[bytes] | Child:
        if self.prefix or self.prelude:
            return self._executed({**environment, "BROKER_PRELUDE": self.prelude})
        return _fork_server().start(
            "brokers:run_forked",
            as_program=True,
            directory=self.directory,
            stdout=self.log,
            stderr=self.log,
            environment=environment,
        )

    def _executed(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Started as a program, for what has to be there before the first import."""
        if "BROKER_PATH" in os.environ:
            environment = {**environment, "PYTHONPATH": os.pathsep.join(PATH)}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.prefix, PYTHON, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
            )

    def ends_before_ready(self, seconds: float = START_SECONDS) -> bool:
        """Wait for one or the other: True if the process ended, False once it takes work."""
        try:
            self.wait_ready(seconds)
        except TallystickError:
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

    def kill(self) -> None:
        super().kill()
        if self.process is not None:
            self.wait()

    def stop(self) -> int:
        """End it with SIGTERM; its exit code."""
        if not self.running:
            return self.wait()
        self.terminate()
        try:
            return self.wait()
        except (subprocess.TimeoutExpired, TimeoutError):
            self.kill()
            raise RuntimeError(f"the broker did not stop within {STOP_SECONDS} s:\n{self.log_text()[-6000:]}") from None

    def restart(self, **settings: Any) -> None:
        """Start it again on the same port and data, after `kill()` or, if it still runs, after a `stop()`."""
        if self.running:
            self.stop()
        self.settings.update(settings)
        self.start()


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
    broker = BrokerProcess(own, settings, prefix, prelude)
    try:
        if start:
            broker.start()
        yield broker
    finally:
        broker.kill()
        if directory is None:
            shutil.rmtree(own, ignore_errors=True)


def run_forked(_: dict[str, Any]) -> None:
    """The work of a broker's process, once its environment is set."""
    from tallystick.api.server import serve
    from tallystick.broker.config import load_config

    file = Path(CONFIG)
    serve(load_config(file if file.exists() else None))


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _fields(row: dict[str, Any]) -> str:
    # Text, numbers and lists of text are written in JSON as in TOML.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in row.items())


@functools.cache
def _fork_server() -> ForkServer:
    return lasting_fork_server(*_MODULES, python=PYTHON, path=PATH)
