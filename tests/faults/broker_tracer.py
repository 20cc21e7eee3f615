"""Faults in the system calls of a broker process, injected by strace."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import BrokerProcess


def from_the_start(fault: str) -> list[str]:
    """What to put before a command to inject a fault from its first call on, each thread counting its own calls.

    `-D` keeps strace in the background, so that the started process is the broker itself."""
    return ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={fault}"]


def newest_log(broker: BrokerProcess) -> Path:
    """The write-ahead log that the running broker writes to."""
    return max((broker.data_dir / "db").glob("*.log"))


@contextmanager
def injected(broker: BrokerProcess, fault: str, path: Path) -> Iterator[None]:
    """A fault in the calls of a running broker that touch one file; gone at the end of the block."""
    command = ["strace", "-f", "-p", str(broker.pid), "-o", "/dev/null", "-P", str(path), "-e", f"inject={fault}"]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_traced(broker)
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)


@contextmanager
def traced(broker: BrokerProcess, calls: str) -> Iterator[Callable[[], str]]:
    """The system calls of these kinds that a running broker makes in the block, with the paths of what they touch."""
    with tempfile.NamedTemporaryFile("r") as written:
        command = ["strace", "-f", "-y", "-s", "0", "-p", str(broker.pid), "-o", written.name, "-e", f"trace={calls}"]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def found() -> str:
            tracer.terminate()
            tracer.wait(10)
            return Path(written.name).read_text()

        try:
            _wait_until_traced(broker)
            yield found
        finally:
            found()


def _wait_until_traced(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + 10
    # The fault may strike at once: a broker that is gone is not traced any more.
    while broker.running and not all(map(_traced, Path(f"/proc/{broker.pid}/task").iterdir())):
        assert time.monotonic() < deadline, "strace could not attach to the broker"
        time.sleep(0.005)


def _traced(task: Path) -> bool:
    try:
        return "\nTracerPid:\t0\n" not in (task / "status").read_text()
    except FileNotFoundError:  # the thread has ended
        return True
