"""The same on uvloop, on which brokers run: its connections begin, break and end in ways of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import test_calls_grpc
import test_calls_hosts
import test_calls_http
import test_calls_https
import uvloop
from test_calls_https import certificate  # noqa: F401 - a fixture

Test = Callable[[], Coroutine[Any, Any, None]]


def async_tests(module: Any) -> list[Callable[..., Coroutine[Any, Any, None]]]:
    found = [value for name, value in vars(module).items() if name.startswith("test_")]
    return [one for one in found if inspect.iscoroutinefunction(one)]


def plain_tests(module: Any) -> list[Test]:
    """Those that need nothing from pytest."""
    return [one for one in async_tests(module) if not inspect.signature(one).parameters]


ALL = [*plain_tests(test_calls_http), *plain_tests(test_calls_grpc)]
SOME_HOSTS = [
    test_calls_hosts.test_a_dead_host_is_given_up_and_only_probed,
    test_calls_hosts.test_a_host_that_returns_gets_everything_that_waited,
    test_calls_hosts.test_a_service_that_breaks_every_connection_is_given_up_and_comes_back,
]


def test_there_are_tests_to_run() -> None:
    assert len(ALL) > 30


@pytest.mark.parametrize("test", [*ALL, *SOME_HOSTS], ids=lambda test: test.__name__)
def test_on_uvloop(test: Test) -> None:
    uvloop.run(test())


@pytest.mark.parametrize("test", async_tests(test_calls_https), ids=lambda test: test.__name__)
def test_tls_on_uvloop(test: Callable[..., Coroutine[Any, Any, None]], request: pytest.FixtureRequest) -> None:
    uvloop.run(test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters}))


@pytest.mark.parametrize("pieces", test_calls_http.BROKEN_OFF)
def test_a_connection_that_is_closed_in_the_middle(pieces: tuple[bytes, ...]) -> None:
    uvloop.run(test_calls_http.test_a_connection_that_is_closed_in_the_middle_is_no_answer(pieces))


@pytest.mark.parametrize("answer", test_calls_http.NOT_TO_BE_TRUSTED)
def test_a_connection_that_cannot_be_trusted(answer: bytes) -> None:
    uvloop.run(test_calls_http.test_a_connection_that_cannot_be_trusted_is_not_used_again(answer))
