"""The disk's own speed: what any promise of durability has to be measured against."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median


def bare_fdatasync(directory: Path, size: int = 1024, seconds: float = 1.5) -> float:
    """The median time of `write + fdatasync` of one message, in seconds."""
    path = directory / "fdatasync-probe"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    took = []
    payload = b"x" * size
    end = time.perf_counter() + seconds
    try:
        while time.perf_counter() < end:
            began = time.perf_counter()
            os.write(handle, payload)
            os.fdatasync(handle)
            took.append(time.perf_counter() - began)
    finally:
        os.close(handle)
        path.unlink()
    return median(took)
