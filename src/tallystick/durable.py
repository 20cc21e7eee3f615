"""Directories that are still there after a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """The directory and those above it, each durable in the one that holds it: a power cut must not take it back
    together with what was acknowledged in it."""
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if path.parent != path:
        make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, as fsync of a file does its content."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
