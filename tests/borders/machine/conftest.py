"""One broker for each file of tests, and the servers of the services' databases."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from border_kinds import Kind, MariaKind, PostgresKind, Psycopg2Kind, SessionKind, SqliteKind

from brokers import BrokerProcess, running_broker
from tallystick.client.transactions import outbox

QUICK = {"check_after": "300ms", "check_interval": "100ms", "redelivery_first": "50ms", "log_level": "warning"}
# Nobody serves the calls of these tests: one try each is enough.
CALLED_ONCE = {"call_retry_first": "1h", "call_retry_cap": "1h"}

# By name: the class, and the server that it needs.
KINDS: dict[str, tuple[Any, str | None]] = {
    "sqlite": (SqliteKind, None),
    "psycopg": (PostgresKind, "postgres"),
    "psycopg2": (Psycopg2Kind, "postgres"),
    "pymysql": (MariaKind, "mariadb"),
    "session": (SessionKind, "postgres"),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**QUICK, **CALLED_ONCE) as process:
        yield process


@pytest.fixture(autouse=True)
def impatient_and_quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Outbox rows that a process has left are looked for at once, not after seconds; nothing is logged of it all."""
    monkeypatch.setattr(outbox, "LEFT_BEHIND_SECONDS", 0.3)
    monkeypatch.setattr(outbox, "REDRIVE_SECONDS", 0.1)
    loggers = [logging.getLogger(name) for name in ("tallystick.client", "psycopg")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def kind_named(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Kind]]:
    """Makes a kind of connection, with databases of its own; starts a server only for a kind that needs it."""
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Kind:
            made, server = KINDS[name]
            kind = made(tmp_path if server is None else request.getfixturevalue(server))
            stack.callback(kind.dispose)
            return kind

        yield make
