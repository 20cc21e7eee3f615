"""A standard output that is full, closed, or read no further: told as every other failure is, without a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from tallystick.core.errors import TallystickError

_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class _Closed(io.TextIOBase):
    """Where Python has None, because it was closed before the program began. A broker can do without it."""

    encoding: Any = "utf-8"

    def write(self, text: str, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """What is printed inside is on its way when this is left; TallystickError if it cannot be."""
    if getattr(sys, "stdout", None) is None:
        sys.stdout = _Closed()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        _drop_the_rest()
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        _drop_the_rest()
        raise TallystickError(f"standard output cannot be written to: {error.strerror}") from error


def _drop_the_rest() -> None:
    """The interpreter would try to write it once more when it ends, and complain."""
    if isinstance(sys.stdout, _Closed):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
