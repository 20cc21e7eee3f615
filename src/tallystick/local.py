"""A broker of one's own: a real process on a free loopback port, for the demo, benchmarks and tests."""

from __future__ import annotations

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

from tallystick.core.errors import TallystickError

START_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalBroker:
    """`with LocalBroker(directory, check_after="1s") as broker: broker.url`. Settings are those of the configuration.

    The port stays the same across restarts, so that clients find it again.
    """

    def __init__(self, directory: Path, wrap: list[str] | None = None, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = directory / "broker.log"
        self._settings = {"data_dir": str(directory / "data"), "port": self.port, **settings}
        self._wrap = wrap or []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        return self._running().poll()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise TallystickError("the local broker was not started")
        return self._process

    def start(self, wait: bool = True) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [*self._wrap, sys.executable, "-m", "tallystick", "serve"]
        for name, value in self._settings.items():
            command.append(f"--{name.replace('_', '-')}={value}")
        # The child's variables must not change what is asked for here.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Until it takes work; an error with its log if it ends or does not get there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._running().poll() is not None:
                raise TallystickError(f"the local broker ended with {self.returncode}:\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=1) as answer:  # noqa: S310 - our own URL
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.02)
        raise TallystickError(f"the local broker was not ready within {seconds:g} s:\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def kill9(self) -> None:
        """As a power cut would end it, as far as the process is concerned."""
        self._signal(signal.SIGKILL)
        self._running().wait()

    def stop(self, seconds: float = 30.0) -> int:
        """As an operator would end it; the exit code."""
        self._signal(signal.SIGTERM)
        try:
            return self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise TallystickError(f"the local broker did not stop within {seconds:g} s:\n{self.log_tail()}") from None

    def restart(self) -> None:
        """kill -9, then start again on the same data and port."""
        self.kill9()
        self.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._running().poll() is None:
            os.killpg(self._running().pid, number)

    def __enter__(self) -> LocalBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill9()
