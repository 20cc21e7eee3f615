"""Processes of one's own, for the demo and the benchmarks: killed and started again, gone when we are."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tallystick.core.errors import TallystickError

START_SECONDS = 30.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Process:
    """One place among the processes: whoever fills it now."""

    def __init__(self, role: str, command: list[str], log: Path) -> None:
        self.role, self.command, self.log = role, command, log
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def pid(self) -> int:
        if self._running is None:
            raise TallystickError(f"the {self.role} was not started")
        return self._running.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def kill(self) -> None:
        """End it as a power cut would: nothing is flushed, nobody is told."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()

    def ask_to_end(self) -> None:
        if self._running is not None and self.alive:
            self._running.send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        if self._running is None:
            return
        try:
            self._running.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def _environment() -> dict[str, str]:
    """Ours, without settings of a broker that the user may have set for another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


class LocalService(Process):
    """`with LocalService(role, command, log) as service: service.url`. A process that serves on a loopback port of its
    own, which stays the same when it is started again; `{port}` in the command is that port."""

    def __init__(self, role: str, command: list[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        super().__init__(role, [word.replace("{port}", str(self.port)) for word in command], log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it takes work; an error with its log if it does not get there."""
        super().start()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if not self.alive or time.monotonic() > deadline:
                last = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise TallystickError(f"the {self.role} did not get ready:\n{last}")
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
    gRPC only if `grpc=True` asks for it: that port is not its own otherwise."""

    def __init__(self, directory: Path, **settings: object) -> None:
        given = {"data_dir": directory / "data", "port": "{port}", "grpc": False, **settings}
        flags = [_flag(name.replace("_", "-"), value) for name, value in given.items()]
        super().__init__("broker", module("tallystick", "serve", *flags), directory / "broker.log")

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=1) as answer:  # noqa: S310 - our own URL
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _flag(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
