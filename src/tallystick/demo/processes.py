"""The demo's processes: started, killed, started again, and gone when the demo is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from tallystick.local import Process

STOP_SECONDS = 10.0


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
            if not process.running:
                self.failures[process.role] += 1
                process.start()

    def stop(self, *roles: str) -> None:
        """End in good order; what does not is killed."""
        ending = [process for role in roles for process in self.of(role)]
        for process in ending:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in ending:
            process.end_by(deadline)

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()
