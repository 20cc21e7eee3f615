"""Kills at an exact moment: a trap is a file, and the process that comes to its moment kills itself.

A kill from outside hits a given moment by luck only. Whoever wants one there sets a trap; the process removes it and
dies, as after `kill -9`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tallystick.demo.processes import Crew
from tallystick.local import Process

CATCH_SECONDS = 20.0


class Traps:
    """`Traps(directory).spring("after-commit")` in the process; `set` or `catch` on the other side."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def spring(self, moment: str) -> None:
        """Called at that moment: does not return if a trap is set."""
        if self._directory is None:
            return
        try:
            (self._directory / moment).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def set(self, moment: str) -> None:
        if self._directory is None:
            raise ValueError("there is no directory for traps")
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / moment).touch()

    def catch(self, crew: Crew, process: Process, moment: str, seconds: float = CATCH_SECONDS) -> bool:
        """Set a trap, and start the process again when it has died of it; False if it did not come to that moment."""
        self.set(moment)
        deadline = time.monotonic() + seconds
        while process.running and time.monotonic() < deadline:
            time.sleep(0.005)
        if process.running and self._directory is not None:
            (self._directory / moment).unlink(missing_ok=True)
            return False
        crew.kill(process)  # it is dead already; this counts it and starts the next
        return True
