"""What is given by mistake in the place of a function that opens a connection, and what to give instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tallystick.barrier.adapters.not_connections import name_of
from tallystick.core.errors import InvalidRequest

_EXAMPLES = "`{field}=pool.acquire`, `{field}=engine.connect` or `{field}=lambda: psycopg.connect(...)`"
_CONTEXT_MANAGER = "a context manager, not a connection"
_CONTEXT_MANAGERS = ("_GeneratorContextManager", "_AsyncGeneratorContextManager")

# (package, class) of a pool or an engine -> its method that opens a connection
_METHODS: dict[tuple[str, str], str] = {
    ("asyncpg", "Pool"): "acquire",
    ("psycopg_pool", "ConnectionPool"): "getconn",
    ("psycopg_pool", "AsyncConnectionPool"): "getconn",
    ("psycopg2", "AbstractConnectionPool"): "getconn",
    ("aiomysql", "Pool"): "acquire",
    ("asyncmy", "Pool"): "acquire",
    ("mysql", "MySQLConnectionPool"): "get_connection",
    ("sqlalchemy", "Engine"): "connect",
    ("sqlalchemy", "AsyncEngine"): "connect",
}
# Methods of these that return no supported connection -> what they return.
_WRONG_METHODS = {
    ("psycopg_pool", "connection"): _CONTEXT_MANAGER,
    ("sqlalchemy", "begin"): _CONTEXT_MANAGER,
    ("sqlalchemy", "raw_connection"): "a proxy that hides the driver's connection",
}

Kinds = list[tuple[str, str]]


def check_opener(given: Any, field: str, kinds_of: Callable[[type], Kinds], connections: Any) -> None:
    """InvalidRequest, with what to give instead, unless `given` may be a function that opens a connection.

    Args:
        given: what the caller has passed.
        field: the name of the argument.
        kinds_of: (package, class) of a class and of its bases.
        connections: the kinds that are connections.
    """
    kinds = kinds_of(type(given))
    problem = _not_a_function(given, kinds, connections)
    if problem is None:
        problem = _of_owner(given, kinds_of) or _wrong_function(given)
    if problem is not None:
        what, advice = problem
        raise InvalidRequest(f"{field}: {what}. {advice.format(field=field)}", field=field)


def _not_a_function(given: Any, kinds: Kinds, connections: Any) -> tuple[str, str] | None:
    got = f"(got {name_of(type(given))})"
    for kind in kinds:
        if kind in connections:
            return (
                f"an open connection is not a function that opens one {got}",
                "Give a function that opens a new one at each call, such as " + _EXAMPLES + ".",
            )
        if kind in _METHODS:
            return (
                f"a pool is not a function that opens a connection {got}",
                "Give its method, `{field}=" + f"{_variable(kind)}.{_METHODS[kind]}`.",
            )
        if kind[1] in _CONTEXT_MANAGERS:
            return f"{_CONTEXT_MANAGER} {got}", f"Give a function that opens a connection, such as {_EXAMPLES}."
    if callable(given):
        return None
    if inspect.iscoroutine(given):
        given.close()  # it will not be awaited
    return f"it must be a function that opens a connection {got}", f"Give one, such as {_EXAMPLES}."


def _of_owner(given: Any, kinds_of: Callable[[type], Kinds]) -> tuple[str, str] | None:
    """A method of a pool or of an engine that returns something else than a connection."""
    owner, name = getattr(given, "__self__", None), getattr(given, "__name__", "")
    for kind in kinds_of(type(owner)):
        if kind in _METHODS and (kind[0], name) in _WRONG_METHODS:
            return (
                f"`{name}` returns {_WRONG_METHODS[kind[0], name]} (got {name_of(type(owner))}.{name})",
                "Give `{field}=" + f"{_variable(kind)}.{_METHODS[kind]}`.",
            )
    return None


def _wrong_function(given: Any) -> tuple[str, str] | None:
    name = getattr(given, "__qualname__", type(given).__qualname__)
    yields = inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given)
    if yields or getattr(given, "__globals__", {}).get("__name__") == "contextlib":
        return (
            f"the function yields a connection and does not return one (got {name})",
            "Give a function that returns an open connection; Tallystick closes it.",
        )
    needed = _needed(given)
    if needed:
        return (
            f"the function is called without arguments (got {name}, which needs {', '.join(needed)})",
            "Give one that takes none, such as `{field}=lambda: " + f"{name.rpartition('.')[2]}(...)`.",
        )
    return None


def _needed(given: Any) -> list[str]:
    """The arguments that must be given to a function; none if Python cannot tell."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind not in several]


def _variable(kind: tuple[str, str]) -> str:
    return "engine" if kind[1].endswith("Engine") else "pool"
