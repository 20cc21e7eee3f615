"""Functions of the service that do nothing when they are called: generators and coroutines.

Calling such a function makes an object, and its code runs only when that object is iterated or awaited. A message
acknowledged after the call alone would be lost.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tallystick.core.errors import InvalidRequest, TallystickError

Nature = Literal["plain", "generator", "coroutine", "wraps coroutine"]


class UnfinishedResult(TallystickError):
    """A function returned a coroutine or a generator that was never run, so it had no effect."""

    code = "unfinished_result"


def nature_of(function: Callable[..., Any]) -> Nature:
    """What a call of the function gives, as far as inspection shows it. A plain function that `functools.wraps` a
    coroutine function may return the coroutine or run it: "wraps coroutine"."""
    for layer, wrapped in _layers(function):
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            return "generator"
        if inspect.iscoroutinefunction(layer):
            return "wraps coroutine" if wrapped else "coroutine"
    return "plain"


def runs_on_loop(function: Callable[..., Any]) -> bool:
    """Whether an asynchronous client calls the function on its event loop, and not on a thread."""
    return nature_of(function) in ("coroutine", "wraps coroutine")


def check_runs(function: Callable[..., Any], field: str, *, awaited: bool) -> None:
    """InvalidRequest if a call of the function could have no effect; `awaited` is whether its caller awaits it."""
    nature = nature_of(function)
    if nature == "generator":
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise InvalidRequest(
            f"{field}: a call of a generator function runs none of its code (got {name}). Remove its `yield`, or "
            "iterate over the generator in a plain function.",
            field=field,
        )
    if nature == "coroutine" and not awaited:
        raise InvalidRequest(f"an async {field} needs AsyncClient", field=field)


def finished(result: Any) -> Any:
    """The result of a function that has run; UnfinishedResult if it is a coroutine, an awaitable or a generator."""
    if result is None:
        return None
    if inspect.isawaitable(result):
        advice = "Await it in an `async def` of an async client (a decorator needs functools.wraps)"
        raise _unfinished(result, "an awaitable that was never awaited", advice)
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise _unfinished(result, "a generator that was never run", "Remove its `yield`, or iterate over it")
    return result


async def awaited(result: Any) -> Any:
    """What is left when everything is awaited: a decorator may return the coroutine of the function that it wraps."""
    while result is not None and inspect.isawaitable(result):
        result = await result
    return finished(result)


def _layers(function: Any) -> Iterator[tuple[Any, bool]]:
    """The function, and those that a call of it reaches; with whether `functools.wraps` lies between."""
    wrapped, seen = False, set[int]()
    while id(function) not in seen:
        seen.add(id(function))
        yield function, wrapped
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isclass(function) and hasattr(function, "__wrapped__"):
            function, wrapped = function.__wrapped__, True
        elif not inspect.isclass(function) and inspect.isfunction(type(function).__call__):
            function = type(function).__call__


def _unfinished(result: Any, problem: str, advice: str) -> UnfinishedResult:
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # or Python would warn of it when it is collected
    name = getattr(result, "__qualname__", "")
    kind = type(result).__qualname__
    return UnfinishedResult(f"result: the function returned {problem} (got {kind} {name}".rstrip() + f"). {advice}.")
