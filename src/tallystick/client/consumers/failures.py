"""How a handler's failure is told in the log: by what the handler did, and not by how it came to be called."""

from __future__ import annotations

from types import TracebackType

from tallystick.core.errors import TallystickError

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_BEFORE_HANDLERS = frozenset(("tallystick", "asyncio", "concurrent", "threading", "contextlib"))
_OF_CONNECTIONS = frozenset(("OperationalError", "InterfaceError"))
"""What drivers of the DB API, and what stands on them, call the errors of a database that does not answer."""


def exc_info_of(failure: BaseException) -> ExcInfo | None:
    """For the log: the frames from the handler's own on. None if there are none, and what was raised says all itself:
    the database is away, or the transaction was lost."""
    trace = failure.__traceback__
    while trace is not None and _package(trace) in _BEFORE_HANDLERS:
        trace = trace.tb_next
    if trace is None and isinstance(failure, TallystickError):
        return None
    return type(failure), failure, trace or failure.__traceback__


def in_one_line(failure: BaseException) -> str:
    """Drivers tell of each host that they have tried in a paragraph of its own."""
    return f"{type(failure).__name__}: {' '.join(str(failure).split())}"


def is_of_the_connection(failure: BaseException) -> bool:
    """Whether a database could not be reached, as far as the kinds of errors tell."""
    return isinstance(failure, OSError) or any(kind.__name__ in _OF_CONNECTIONS for kind in type(failure).__mro__)


def _package(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
