"""A broker, a service that is called, and a bank's database on each engine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from style_bank import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from busi import Busi, running_busi

ENGINES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_interval="300ms", call_retry_first="100ms", call_retry_cap="300ms") as process:
        yield process


@pytest.fixture
def busi() -> Iterator[Busi]:
    with running_busi() as service:
        yield service


@pytest.fixture(params=ENGINES)
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    if request.param == "sqlite":
        return Bank("sqlite", tmp_path / "bank.db")
    server = {"postgresql": "postgres", "mysql": "mariadb"}[request.param]
    return Bank(request.param, request.getfixturevalue(server))


@pytest.fixture
def one_bank(tmp_path: Path) -> Bank:
    return Bank("sqlite", tmp_path / "bank.db")


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def ts(broker: BrokerProcess, bank: Bank, group: str) -> Iterator[tallystick.Client]:
    """A client that answers check-backs by itself."""
    with tallystick.Client(broker.url, group=group, database=bank.open) as client:
        yield client
