"""The parent's side of `zygote_main.py`: start children, wait until they stop or end, wake them, read their reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WAIT_SECONDS = 45.0
LOG = "children.log"


class Child:
    """One process and what it reports."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        self.pid = 0
        self.exit_code: int | None = None
        self.stopped = False
        self._report = directory / f"report-{number}"
        self._log = directory / LOG
        self._changed = threading.Condition()

    def note(self, **what: Any) -> None:
        with self._changed:
            for name, value in what.items():
                setattr(self, name, value)
            self._changed.notify_all()

    def _wait_until(self, ready: Any, what: str, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(ready, seconds):
                return
        self._signal(signal.SIGUSR1)  # it writes down what its threads are at
        time.sleep(0.5)
        log = self._log.read_text(errors="replace")
        raise TimeoutError(f"process {self.pid} did not {what} within {seconds} s; {self.report}\n{log[-8000:]}")

    def wait(self, seconds: float = WAIT_SECONDS) -> int:
        """Its exit code once it has ended; minus the number of the signal that killed it."""
        self._wait_until(lambda: self.exit_code is not None, "end", seconds)
        assert self.exit_code is not None
        return self.exit_code

    def wait_stopped(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until it stops; False if it ended instead."""
        self._wait_until(lambda: self.stopped or self.exit_code is not None, "stop", seconds)
        return self.stopped

    def wait_for_report(self, kind: str, seconds: float = WAIT_SECONDS) -> Any:
        """Wait until it has written something of a kind."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.reported(kind)
            if found:
                return found[0]
            time.sleep(0.02)
        raise TimeoutError(f"process {self.pid} did not report {kind} within {seconds} s: {self.report}")

    def resume(self) -> None:
        self.stopped = False
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def report(self) -> list[dict[str, Any]]:
        """What it wrote, in order."""
        if not self._report.exists():
            return []
        return [json.loads(line) for line in self._report.read_text().splitlines()]

    def reported(self, kind: str) -> list[Any]:
        return [line[kind] for line in self.report if kind in line]


class Nursery:
    """All children of one zygote."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / LOG
        self.children: list[Child] = []
        with self.log.open("ab") as log:
            self._zygote = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("zygote_main.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def start(self, role: str, **case: Any) -> Child:
        assert self._zygote.stdin is not None
        with self._lock:
            child = Child(len(self.children), self.directory)
            self.children.append(child)
            told = {"number": child.number, "role": role, "report": str(child._report), **case}
            self._zygote.stdin.write(json.dumps(told).encode() + b"\n")
            self._zygote.stdin.flush()
        child._wait_until(lambda: child.pid, "start", WAIT_SECONDS)
        return child

    def _listen(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            said = json.loads(line)
            child = self.children[said["number"]]
            if "pid" in said:
                child.note(pid=said["pid"])
            elif "ended" in said:
                child.note(exit_code=said["ended"])
            else:
                child.note(stopped=True)

    def close(self) -> None:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait(WAIT_SECONDS)
        self._listener.join()
        self._zygote.stdout.close()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def nursery(directory: Path) -> Iterator[Nursery]:
    crew = Nursery(directory)
    try:
        yield crew
    finally:
        crew.close()
