"""Fixtures for pytest, there in every project that has tallystick installed.

pytest loads this module in every run, so it imports nothing but pytest: what a fixture needs comes with its first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tallystick.testing.steps import STEPS

if TYPE_CHECKING:
    from tallystick import AsyncClient, Client
    from tallystick.testing import CrashAt, MemoryBroker

GROUP = "tests"


@pytest.fixture(scope="session")
def _tallystick_broker() -> Iterator[MemoryBroker]:
    """One for the whole run (of this worker): the next test finds it running."""
    try:
        from tallystick.testing import MemoryBroker
    except ModuleNotFoundError as missing:
        pytest.fail(str(missing), pytrace=False)
    with MemoryBroker() as broker:
        yield broker


@pytest.fixture
def tallystick_broker(_tallystick_broker: MemoryBroker) -> MemoryBroker:
    """A real broker in this process, in memory, with nothing in it at the start of each test."""
    _tallystick_broker.reset()
    return _tallystick_broker


@pytest.fixture
def tallystick_client(tallystick_broker: MemoryBroker) -> Iterator[Client]:
    """A client of that broker, of the group "tests"."""
    from tallystick import Client

    with Client(tallystick_broker.url, group=GROUP) as client:
        yield client


@pytest.fixture
def tallystick_async_client(tallystick_broker: MemoryBroker) -> AsyncClient:
    """The same for asyncio, not yet open: `async with tallystick_async_client as ts:` on the test's own event loop."""
    from tallystick import AsyncClient

    return AsyncClient(tallystick_broker.url, group=GROUP)


@pytest.fixture(params=STEPS)
def tallystick_crash(request: pytest.FixtureRequest) -> CrashAt:
    """`with tallystick_crash:` the block in it dies; the test runs once for each step of a block."""
    from tallystick.testing import crash_at

    return crash_at(request.param)
