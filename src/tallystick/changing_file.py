"""A file that somebody replaces while we run: read again when it has changed."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tallystick.core.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger("tallystick.files")

LOOK_SECONDS = 1.0
MOST_BYTES = 1024 * 1024


class ChangingFile(Generic[T]):
    """What stands in a file. It is read at once, and a wrong one is refused (`ConfigError`); when it is wrong or gone
    later, what it said before goes on, and the log says why. Safe to use from several threads."""

    def __init__(
        self,
        path: str | Path,
        parse: Callable[[str], T],
        what: str,
        *,
        secret: bool = False,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`parse` makes a ConfigError or a ValueError of what is wrong. `what` it is, for whoever reads that. If it is
        `secret` and others than its owner may read it, the log says so."""
        self._path, self._parse, self._what = Path(path), parse, what
        self._secret, self._look_seconds = secret, look_seconds
        self._mark: tuple[int, ...] | None = None
        self._told = ""
        self.generation = 0  # of what was read: another number, another content
        self._value = self._read()
        self._looked = time.monotonic()

    @property
    def value(self) -> T:
        if time.monotonic() - self._looked >= self._look_seconds:
            self._looked = time.monotonic()
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            if _mark(os.stat(self._path)) != self._mark:
                self._value = self._read()
                log.info("%s %s was read again", self._what, self._path)
        except (ConfigError, OSError) as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Once for each reason: whoever mends it needs no line a second."""
        if str(error) != self._told:
            self._told = str(error)
            log.error("%s %s: the last one that was right goes on: %s", self._what, self._path, error)

    def _read(self) -> T:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                self._mark = _mark(found)  # before the content: one that is wrong is told once, not every second
                text = file.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            value = self._parse(text.decode())
        except OSError as error:
            raise ConfigError(f"{self._what} {self._path}: {error.strerror}") from error
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{self._what} {self._path}: {error}") from error
        self.generation += 1
        self._told = ""
        if self._secret and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = stat.S_IMODE(found.st_mode)
            log.warning("%s %s: others than its owner may use it (mode %o); chmod 600", self._what, self._path, mode)
        return value


def _mark(found: os.stat_result) -> tuple[int, ...]:
    """Another one after every change: replaced, or written in place."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
