"""The ways from workers to brokers and from these to what they share, and the weather on each of them."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from tallystick.chaos.proxy import Weather
from tallystick.core.errors import TallystickError
from tallystick.local import LocalService, free_port, module

CALL_SECONDS = 60.0


class Crossing:
    """One way: whoever connects to `url` is led to the target."""

    def __init__(self, target_port: int, host: str) -> None:
        self.port, self.target = free_port(), f"{host}:{target_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Network:
    """All crossings. They are made first; then the network is started, and the weather can be changed."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._crossings: list[Crossing] = []
        self._process: LocalService | None = None
        self._control: socket.socket | None = None

    def cross(self, target_port: int, host: str = "127.0.0.1") -> Crossing:
        """A new way to a port, of this machine if no other is named."""
        self._crossings.append(Crossing(target_port, host))
        return self._crossings[-1]

    def start(self) -> None:
        ways = [f"{crossing.port}:{crossing.target}" for crossing in self._crossings]
        self._process = LocalService("network", module("tallystick.chaos.proxy", "{port}", *ways), self._log)
        self._process.process_group = 0
        self._process.start()
        self._control = socket.create_connection(("127.0.0.1", self._process.port), timeout=CALL_SECONDS)

    def change(self, crossings: Iterable[Crossing], weather: Weather) -> None:
        """It is so when this returns."""
        lines = [f"{crossing.port} {weather}\n" for crossing in crossings]
        if self._control is None:
            raise TallystickError("the network was not started")
        self._control.sendall("".join(lines).encode())
        due = len(b"done\n") * len(lines)
        while due:
            answered = len(self._control.recv(due))
            if not answered:
                raise TallystickError(f"the network has ended; see {self._log}")
            due -= answered

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
