"""The demo's processes: started, killed, started again, and gone when the demo is."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

STOP_SECONDS = 10.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Process:
    """One place in the crew: whoever fills it now."""

    def __init__(self, role: str, command: list[str], log: Path) -> None:
        self.role, self.command, self._log = role, command, log
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def start(self) -> None:
        with self._log.open("ab") as log:
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


class Crew:
    """All processes of the demo."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.processes = list(processes)
        self.kills: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()  # ends that nobody asked for

    def of(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def start(self, role: str) -> None:
        for process in self.of(role):
            process.start()

    def kill(self, process: Process) -> None:
        process.kill()
        self.kills[process.role] += 1
        process.start()

    def revive(self) -> None:
        """Start again what ended by itself, which nothing here should."""
        for process in self.processes:
            if not process.alive:
                self.failures[process.role] += 1
                process.start()

    def stop(self, *roles: str) -> None:
        """End in good order; what does not is killed."""
        ending = [process for role in roles for process in self.of(role)]
        for process in ending:
            process.ask_to_end()
        deadline = time.monotonic() + STOP_SECONDS
        for process in ending:
            process.wait(deadline)

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def _environment() -> dict[str, str]:
    """Ours, without settings of a broker that the user may have set for another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
