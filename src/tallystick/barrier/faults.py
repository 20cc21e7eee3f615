"""Driver errors that an operation may know how to handle.

The runner throws these into the operation. One that is not handled there never reaches the caller: the caller
gets the driver's own error, so that its usual handling (retry on a deadlock, say) still works.
"""

from __future__ import annotations

from tallystick.barrier.errors import BarrierError


class Fault(Exception):
    """A driver error with a meaning; `original` is what the driver raised."""

    def __init__(self, original: BaseException) -> None:
        self.original = original
        super().__init__(str(original))


class Contention(Fault):
    """Another transaction was in the way: a lock wait ran out, a deadlock, a serialization failure."""


class Duplicate(Fault):
    """A unique key is taken."""


class NoSavepoint(Fault):
    """There is no savepoint of that name: the transaction that made it has ended."""


class Aborted(Fault):
    """An earlier error has aborted the transaction; it can only be rolled back."""


class UnknownSyntax(Fault):
    """The server is too old to know the statement."""


FaultKind = type[Fault] | type[BarrierError]


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error: SQLAlchemy wraps it and keeps it as `orig`, Django as the cause."""
    wrapped_by_django = type(error).__module__ == "django.db.utils"
    original = error.__cause__ if wrapped_by_django else getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error
