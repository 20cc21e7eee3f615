"""Processes for tests, forked from one that has everything imported: `with ForkServer(directory, "module") as server`.

This is the parent's side of `fork_server_main.py`: start children, wait until they stop or end, wake them, read their
reports.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eventually import SECONDS as PATIENCE


class Child:
    """One process and what it reports."""

    def __init__(self, number: int, log: Path, report: Path) -> None:
        self.number = number
        self.pid = 0
        self.exit_code: int | None = None
        self.stopped = False
        self._log, self._report = log, report
        self._changed = threading.Condition()

    def note(self, **what: Any) -> None:
        with self._changed:
            for name, value in what.items():
                setattr(self, name, value)
            self._changed.notify_all()

    def wait_until(self, ready: Any, what: str, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(ready, seconds):
                return
        self.send_signal(signal.SIGUSR1)  # it writes down what its threads are at
        time.sleep(0.5)
        log = self._log.read_text(errors="replace")
        raise TimeoutError(f"process {self.pid} did not {what} within {seconds} s; {self.report}\n{log[-8000:]}")

    def poll(self) -> int | None:
        """Its exit code, or None while it lives."""
        return self.exit_code

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code once it has ended; minus the number of the signal that killed it."""
        self.wait_until(lambda: self.exit_code is not None, "end", seconds)
        assert self.exit_code is not None
        return self.exit_code

    def wait_stopped(self, seconds: float = PATIENCE) -> bool:
        """Wait until it stops; False if it ended instead."""
        self.wait_until(lambda: self.stopped or self.exit_code is not None, "stop", seconds)
        return self.stopped

    def wait_for_report(self, kind: str, seconds: float = PATIENCE) -> Any:
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
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
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


class ForkServer:
    """A process that has imported some modules, and all its children. By default it runs what we run, from where we
    have it."""

    def __init__(
        self, directory: Path, *modules: str, python: str = sys.executable, path: list[str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log = directory / "children.log"
        self.children: list[Child] = []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    python,
                    str(Path(__file__).with_name("fork_server_main.py")),
                    json.dumps({"path": sys.path if path is None else path, "modules": modules}),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(
        self,
        work: str,
        *,
        directory: Path | None = None,
        as_program: bool = False,
        stdin: Path = Path(os.devnull),
        stdout: Path | None = None,
        stderr: Path | None = None,
        environment: dict[str, str] | None = None,
        **case: Any,
    ) -> Child:
        """A child that does `work`, a `module:function` that is given the case. It ends in the moment that its work
        does, or in the way of any program. What it writes goes to the server's log unless told otherwise."""
        assert self._process.stdin is not None
        with self._lock:
            number = len(self.children)
            child = Child(number, stderr or self.log, self.directory / f"report-{number}")
            self.children.append(child)
            told = {
                "work": work,
                "as_program": as_program,
                "number": number,
                "report": str(child._report),
                "directory": str(directory or Path.cwd()),
                "streams": [str(stdin), str(stdout or self.log), str(stderr or self.log)],
                "environment": dict(os.environ if environment is None else environment),
                **case,
            }
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        child.wait_until(lambda: child.pid or child.exit_code is not None, "start", PATIENCE)
        assert child.pid, f"the fork server is gone:\n{self.log_text()[-4000:]}"
        return child

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            child = self.children[said["number"]]
            if "pid" in said:
                child.note(pid=said["pid"])
            elif "ended" in said:
                child.note(exit_code=said["ended"])
            else:
                child.note(stopped=True)
        for child in self.children:  # whoever is left dies with the server
            if child.exit_code is None:
                child.note(exit_code=-signal.SIGKILL)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._listener.join()
        self._process.stdout.close()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lasting_fork_server(*modules: str, python: str = sys.executable, path: list[str] | None = None) -> ForkServer:
    """One that ends with the tests."""
    directory = Path(tempfile.mkdtemp(prefix="tallystick-"))
    server = ForkServer(directory, *modules, python=python, path=path)

    def end() -> None:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    return server
