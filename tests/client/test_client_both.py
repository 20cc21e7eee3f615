"""`Client` and `AsyncClient` are one interface: what one can do, the other can, in the same words."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from tallystick import AsyncClient, AsyncTransaction, Client, Transaction
from tallystick.client.blocking import BlockingOperations
from tallystick.client.operations import Operations

# The one thing in which they differ on purpose.
SYNC_FOR = {AsyncTransaction: Transaction, AsyncClient: Client}
NOT_OF_BOTH = {"after_fork"}  # a client on an event loop is made anew after a fork, with its loop


def public(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class, those that it inherits too."""
    found = {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}
    return {name: member for name, member in found.items() if callable(member) or isinstance(member, property)}


def methods(kind: type) -> set[str]:
    return {name for name, member in public(kind).items() if not isinstance(member, property)}


def test_both_have_the_same_public_names() -> None:
    assert set(public(Client)) - NOT_OF_BOTH == set(public(AsyncClient))


@pytest.mark.parametrize("name", ["__init__", *sorted(methods(AsyncClient))])
def test_a_method_is_the_same_in_both(name: str) -> None:
    here, there = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.signature(here).parameters == inspect.signature(there).parameters
    hints = get_type_hints(there)
    assert get_type_hints(here) == {**hints, "return": SYNC_FOR.get(hints["return"], hints["return"])}
    assert (here.__doc__ or "") == (there.__doc__ or "").replace("`await ", "`")
    assert not inspect.iscoroutinefunction(here)


@pytest.mark.parametrize("name", sorted(methods(Client)))
def test_a_method_says_what_it_does_and_takes(name: str) -> None:
    method = getattr(Client, name)
    assert method.__doc__
    assert {one.kind for one in inspect.signature(method).parameters.values()}.isdisjoint(
        {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    )


AWAITED = sorted(name for name, method in vars(Operations).items() if inspect.iscoroutinefunction(method))


class Noting(BlockingOperations):
    """The blocking operations over something that only notes how it is called."""

    def __init__(self) -> None:
        self.noted: dict[str, Any] = {}
        self._operations: Any = self._Below(self.noted)

    def _call(self, function: Any) -> Any:
        return function()

    class _Below:
        def __init__(self, noted: dict[str, Any]) -> None:
            self._noted = noted

        def __getattr__(self, name: str) -> Any:
            signature = inspect.signature(getattr(Operations, name))
            return lambda *args, **kwargs: self._noted.update(signature.bind(None, *args, **kwargs).arguments)


@pytest.mark.parametrize("name", [name for name in AWAITED if not name.startswith("_")])
def test_every_argument_is_handed_on_under_its_name(name: str) -> None:
    given = {one: object() for one in inspect.signature(getattr(Operations, name)).parameters if one != "self"}
    blocking = Noting()
    getattr(blocking, name)(**given)
    assert blocking.noted == {"self": None, **given}
