"""A service with a database on each engine, and a broker that asks soon, for tests of what its code may do to them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "client"))  # the service's database is that of the client's tests

from borders_support import MODES, Mode, Service
from client_support import Bank

from brokers import BrokerProcess, running_broker

QUICK = {"check_after": "1s", "check_interval": "200ms", "redelivery_first": "100ms"}

SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}
MARKS = {"postgresql": [pytest.mark.postgresql], "mysql": [pytest.mark.mariadb, pytest.mark.full]}


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**QUICK) as process:
        yield process


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> Mode:
    """Each way to make a local transaction and its messages one, in turn."""
    return MODES[request.param]


def _bank(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    if engine == "sqlite":
        return Bank("sqlite", tmp_path / "bank.db")
    return Bank(engine, request.getfixturevalue(SERVERS[engine]))


@pytest.fixture(params=[pytest.param(engine, marks=MARKS.get(engine, ())) for engine in ("sqlite", *SERVERS)])
def any_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    return _bank(request.param, request, tmp_path)


@pytest.fixture(params=[pytest.param(engine, marks=MARKS[engine]) for engine in SERVERS])
def server_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    """On each engine that has a server."""
    return _bank(request.param, request, tmp_path)


@pytest.fixture
def sqlite_bank(tmp_path: Path) -> Bank:
    return Bank("sqlite", tmp_path / "bank.db")


@pytest.fixture
def postgres_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    return _bank("postgresql", request, tmp_path)


@pytest.fixture
def mariadb_bank(request: pytest.FixtureRequest, tmp_path: Path) -> Bank:
    return _bank("mysql", request, tmp_path)


@pytest.fixture
def any_service(broker: BrokerProcess, any_bank: Bank, topic: str, group: str) -> Iterator[Service]:
    with closing(Service(broker, any_bank, topic, group)) as service:
        yield service


@pytest.fixture
def server_service(broker: BrokerProcess, server_bank: Bank, topic: str, group: str) -> Iterator[Service]:
    with closing(Service(broker, server_bank, topic, group)) as service:
        yield service


@pytest.fixture
def sqlite_service(broker: BrokerProcess, sqlite_bank: Bank, topic: str, group: str) -> Iterator[Service]:
    with closing(Service(broker, sqlite_bank, topic, group)) as service:
        yield service


@pytest.fixture
def postgres_service(broker: BrokerProcess, postgres_bank: Bank, topic: str, group: str) -> Iterator[Service]:
    with closing(Service(broker, postgres_bank, topic, group)) as service:
        yield service


@pytest.fixture
def mariadb_service(broker: BrokerProcess, mariadb_bank: Bank, topic: str, group: str) -> Iterator[Service]:
    with closing(Service(broker, mariadb_bank, topic, group)) as service:
        yield service
