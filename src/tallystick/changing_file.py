"""Files that somebody replaces while we run: read again when they have changed. While they are wrong, or only half
replaced, what they said before goes on."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from tallystick.core.errors import ConfigError, TallystickError
from tallystick.core.tokens import parse_token

T = TypeVar("T")

log = logging.getLogger("tallystick.files")

LOOK_SECONDS = 1.0
MOST_BYTES = 1024 * 1024


class MadeOfFiles(Generic[T]):
    """What is made of some files. It is made at once, and what is wrong then is raised; when something is wrong later,
    what was made before goes on, and the log says why. Safe to use from several threads."""

    def __init__(
        self, what: str, paths: Iterable[str | Path], make: Callable[[], T], look_seconds: float = LOOK_SECONDS
    ) -> None:
        """`make` says which file is wrong, and what about it: a TallystickError, OSError or ValueError."""
        self._what, self._paths, self._make = what, tuple(paths), make
        self._look_seconds = look_seconds
        self._told = ""
        self.generation = 0  # of what was read: another number, another content
        self._marks = self._seen()
        self._value = self._made()
        self._looked = time.monotonic()

    @property
    def value(self) -> T:
        if time.monotonic() - self._looked >= self._look_seconds:
            self._looked = time.monotonic()
            self._look()
        return self._value

    def _look(self) -> None:
        marks = self._seen()
        if marks == self._marks:
            return
        self._marks = marks  # before the content: what is wrong is told once, and not at each look
        try:
            self._value = self._made()
        except (TallystickError, OSError, ValueError) as error:
            self._tell(error)
        else:
            log.info("%s: read again", self._what)

    def _made(self) -> T:
        value = self._make()
        self.generation += 1
        self._told = ""
        return value

    def _tell(self, error: Exception) -> None:
        """Once for each reason: whoever mends it needs no line a second."""
        if str(error) != self._told:
            self._told = str(error)
            log.error("%s; the last one that was right goes on", error)

    def _seen(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_mark, self._paths))


class ChangingFile(MadeOfFiles[T]):
    """What stands in one file. A wrong one is refused at the start (`ConfigError`)."""

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
        self._path, self._parse, self._secret = Path(path), parse, secret
        misplaced = parse_token(str(path)) is not None
        self._named = f"{what} (a token stands where the path of its file belongs)" if misplaced else f"{what} {path}"
        super().__init__(self._named, (path,), self._read, look_seconds)

    def _read(self) -> T:
        """What is raised from here has no frame with the content in it, which may be a secret."""
        try:
            return self._parse(self._text())
        except OSError as error:
            raise ConfigError(f"{self._named} cannot be read ({error.strerror})") from None
        except (TallystickError, ValueError) as error:
            raise ConfigError(f"{self._named}: {error}") from error.with_traceback(None)

    def _text(self) -> str:
        with self._path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_BYTES + 1)
        if self._secret and mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("%s: others than its owner may use it (mode %o); chmod 600", self._named, stat.S_IMODE(mode))
        if len(content) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        with suppress(UnicodeDecodeError):  # which has the content in it
            return content.decode()
        raise ValueError("this is no text in UTF-8")


def _mark(path: str | Path) -> tuple[int, ...] | None:
    """Another one after every change: replaced, written in place, or gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
