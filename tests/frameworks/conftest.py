"""A broker that asks soon, and the database of a service, for the extensions of web frameworks."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "client"))  # the service's database is that of the client's tests

from client_support import Bank

from brokers import BrokerProcess, running_broker


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="500ms", check_interval="300ms", redelivery_first="100ms") as process:
        yield process


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank("sqlite", tmp_path / "bank.db")
