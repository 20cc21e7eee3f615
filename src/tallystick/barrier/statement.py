"""The language between the rules and the drivers: steps go out, results come back, and no I/O in between.

An operation is written once, as a generator that yields `Step`s and receives `Result`s. A runner drives it over
a sync or an async connection, so both kinds obey the very same rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from tallystick.barrier.dialects.base import Dialect

T = TypeVar("T")
P = ParamSpec("P")


class Statement(Struct, frozen=True):
    """SQL with `:name` placeholders, and their values. Values are always bound, never put into the text."""

    sql: str
    params: Mapping[str, Any] = {}
    returns_nothing: bool = False
    """Whether it has neither values to bind nor a result to read."""


class Result(Struct, frozen=True):
    """The rows a statement returned, and how many it touched."""

    rows: Sequence[tuple[Any, ...]] = ()
    rowcount: int = 0


class Control(Enum):
    """Transaction boundaries, for operations that make their own. The value is the adapter's method."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class Begin(Struct, frozen=True):
    """Begin a transaction with its first statement: in one round trip where the driver can."""

    first: Statement


Step = Statement | Control | Begin
Steps = Generator[Step, Result, T]


class Operation(Struct, Generic[T], frozen=True):
    """Something to do in a database; nothing happens until a runner is given it."""

    steps: Callable[..., Steps[T]]
    args: tuple[Any, ...]
    options: dict[str, Any]
    own_transaction: bool

    @property
    def name(self) -> str:
        return self.steps.__name__


def operation(steps: Callable[Concatenate[Dialect, P], Steps[T]]) -> Callable[P, Operation[T]]:
    """An operation that is part of whatever transaction the caller has open."""
    return _described(steps, own_transaction=False)


def own_operation(steps: Callable[Concatenate[Dialect, P], Steps[T]]) -> Callable[P, Operation[T]]:
    """An operation that begins and ends transactions itself: it needs a connection with none open."""
    return _described(steps, own_transaction=True)


def _described(
    steps: Callable[Concatenate[Dialect, P], Steps[T]], *, own_transaction: bool
) -> Callable[P, Operation[T]]:
    @wraps(steps)
    def describe(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return Operation(steps, args, kwargs, own_transaction)

    # For help() and editors: the dialect comes from the adapter, not from the caller.
    whole = inspect.signature(steps)
    shown = whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=Operation)
    describe.__signature__ = shown  # type: ignore[attr-defined]
    return describe
