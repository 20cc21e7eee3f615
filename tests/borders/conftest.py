"""One broker for each file of tests, and the servers of the services' databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from border_kinds import Kind, MariaKind, PostgresKind, SessionKind, SqliteKind

from brokers import BrokerProcess, running_broker
from servers import mariadb, postgres
from tallystick.client import outbox
from tallystick.client.core import ClientCore

__all__ = ["mariadb", "postgres"]

QUICK = {"check_after": "300ms", "check_interval": "100ms", "redelivery_first": "50ms", "log_level": "warning"}
# Nobody serves the calls of these tests: one try each is enough.
CALLED_ONCE = {"call_retry_first": "1h", "call_retry_cap": "1h"}

KINDS = [
    "sqlite",
    pytest.param("psycopg", marks=pytest.mark.postgresql),
    pytest.param("pymysql", marks=pytest.mark.mariadb),
    pytest.param("session", marks=pytest.mark.postgresql),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**QUICK, **CALLED_ONCE) as process:
        yield process


@pytest.fixture(autouse=True)
def impatient_and_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outbox rows that a process has left are looked for at once, not after seconds; nothing is logged of it all."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.3)
    monkeypatch.setattr(ClientCore._drive, "__defaults__", (0.1,))
    monkeypatch.setattr(logging.getLogger("tallystick.client"), "disabled", True)


@pytest.fixture(params=KINDS)
def any_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "sqlite":
        yield SqliteKind(tmp_path)
    elif request.param == "psycopg":
        yield PostgresKind(request.getfixturevalue("postgres"))
    elif request.param == "pymysql":
        yield MariaKind(request.getfixturevalue("mariadb"))
    else:
        kind = SessionKind(request.getfixturevalue("postgres"))
        yield kind
        kind.dispose()
