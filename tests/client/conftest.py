"""A broker for each file of tests, and a service's database for each test."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker

QUICK = {"check_after": "500ms", "check_interval": "300ms", "redelivery_first": "100ms"}

ENGINES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**QUICK) as process:
        yield process


@pytest.fixture
def _left_sockets() -> Iterator[None]:
    """A socket whose owner was interrupted on making it is nobody's: it is found here, not in some later test. Here,
    because until the test has returned, its own variables may hold the errors that hold the socket."""
    yield
    gc.collect()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank("sqlite", tmp_path / "bank.db")


@pytest.fixture(params=ENGINES)
def any_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    """The service's database, on each engine in turn."""
    if request.param == "sqlite":
        return Bank("sqlite", tmp_path / "bank.db")
    server = {"postgresql": "postgres", "mysql": "mariadb"}[request.param]
    return Bank(request.param, request.getfixturevalue(server))


@pytest.fixture
def ts(broker: BrokerProcess, group: str) -> Iterator[tallystick.Client]:
    with tallystick.Client(broker.url, group=group, wait=True) as client:
        yield client
