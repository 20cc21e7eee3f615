"""A small disk, and how to fill it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small(tmp_path / "disk") as disk:
        yield disk


@contextlib.contextmanager
def small(disk: Path) -> Iterator[Path]:
    """A disk of 64 MiB at this place."""
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Use up the disk but for `leave` bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        free = os.statvfs(disk)
        size = free.f_bavail * free.f_frsize - leave
        while size > 0:
            size -= file.write(bytes(min(size, MIB)))
    return ballast
