"""Processes of one's own, for the demo, the examples, the benchmarks and the tests: killed and started again, gone when
we are."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tallystick.core.errors import TallystickError
from tallystick.credentials.credentials import Credentials
from tallystick.credentials.tokens import SecretToken

START_SECONDS = 90.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_claims: deque[int] = deque(maxlen=128)
"""The sockets that keep the ports given out last for those who asked."""


class Running(Protocol):
    """A process that was started, as the standard library shows it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


class Process:
    """One place among the processes: whoever fills it now."""

    process_group: int | None = None
    """0 for one of its own, so that a terminal's Ctrl-C is told to us alone."""

    def __init__(self, role: str, command: list[str], log: Path, settings: Mapping[str, object] | None = None) -> None:
        self.role, self.command, self.log = role, command, log
        self.settings = dict(settings or {})
        self.process: Running | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    def _started(self) -> Running:
        if self.process is None:
            raise TallystickError(f"the {self.role} was not started")
        return self.process

    def spawn(self) -> None:
        """Start it and do not wait for anything."""
        self.process = self._launch(self.environment())

    def start(self) -> None:
        self.spawn()

    def environment(self) -> dict[str, str]:
        """Ours, without settings of a broker that the user may have set for another one, and with those given here."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}
        return inherited | {f"TALLYSTICK_{name.upper()}": _text(value) for name, value in self.settings.items()}

    def _launch(self, environment: dict[str, str]) -> Running:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=self.process_group,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def kill(self) -> None:
        """End it as a power cut would: nothing is flushed, nobody is told."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def pause(self) -> None:
        """Let it stand still in the middle of whatever it does."""
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._started().send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end, and return at once."""
        if self.process is not None and self.running:
            self.process.send_signal(signal.SIGTERM)

    def end_by(self, deadline: float) -> None:
        """Wait until it has ended; kill it when it is still there by then."""
        while self.running:
            if time.monotonic() > deadline:
                return self.kill()
            time.sleep(0.01)
        return None

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _text(value: object) -> str:
    """A setting as the environment of a broker says it."""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class LocalService(Process):
    """`with LocalService(role, command, log) as service: service.url`. A process that serves on a loopback port of its
    own, which stays the same when it is started again; `{port}` in the command is that port."""

    def __init__(
        self, role: str, command: list[str], log: Path, settings: Mapping[str, object] | None = None, port: int = 0
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        super().__init__(role, [word.replace("{port}", str(self.port)) for word in command], log, settings)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it takes work; an error with its log if it does not get there."""
        self.spawn()
        self.wait_ready()

    @property
    def ready(self) -> bool:
        """Whether it takes work now."""
        return self._ready()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not self._ready():
            if not self.running or time.monotonic() > deadline:
                ended = self._started().poll()
                last = "\n".join(self.log_text().splitlines()[-60:])
                raise TallystickError(f"the {self.role} did not get ready (exit code {ended}):\n{last}")
            time.sleep(0.02)

    def _ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            found = probe.connect_ex(("127.0.0.1", self.port)) == 0
            # While nobody listens, a socket that was given this very port by chance connects to itself.
            return found and probe.getsockname() != probe.getpeername()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class LocalBroker(LocalService):
    """`LocalBroker(directory, check_after="1s")`: a broker; its settings are those of the configuration. It speaks
    gRPC only if `grpc=True` asks for it: that port is not its own otherwise. `token` is one that it knows, and that
    those who speak to it show: `Link(broker.url, credentials=broker.credentials)`."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        token = settings.pop("token", None)
        self.credentials = Credentials(None if token is None else SecretToken(str(token)))
        port = int(str(settings.get("port", 0)))
        super().__init__("broker", module("tallystick", "serve"), directory / "broker.log", port=port)
        self.settings = {"data_dir": directory / "data", "grpc": False, **settings, "port": self.port}

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:  # noqa: S310 - our own URL
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A loopback port that nobody listens on now, and that nobody else is given before it is used."""
    claim = socket.socket()
    claim.bind(("127.0.0.1", 0))
    # Allowed only after the port was found: whoever names this port may bind it beside us (servers set the same),
    # and the kernel gives it neither to another search like this one nor to a connection that goes out.
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if len(_claims) == _claims.maxlen:
        os.close(_claims.popleft())
    port = int(claim.getsockname()[1])
    _claims.append(claim.detach())
    return port
