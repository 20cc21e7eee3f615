"""What a process costs: processor time and memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """What a process and those it started have used by now, in their own code and in the system's; those that have
    ended count with whoever waited for them."""
    import psutil  # memory can be looked at without it

    one = psutil.Process(pid)
    times = []
    for process in (one, *one.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended, and counts with whoever waited for it
            times.append(process.cpu_times())
    return float(sum(time.user + time.system + time.children_user + time.children_system for time in times))


def resident_mb(pid: int) -> float:
    """Resident memory of a process, in MB."""
    return _memory(pid, "VmRSS:")


def forget_peak(pid: int) -> None:
    """From here on the peak is that of what comes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """The most resident memory that a process has had since its start, or since `forget_peak`, in MB."""
    return _memory(pid, "VmHWM:")


def _memory(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"process {pid} has no {field.rstrip(':')}")
