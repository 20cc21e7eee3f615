"""One broker for all pages that do not ask for another."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from brokers import BrokerProcess, running_broker
from servers import Server


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1s", check_interval="500ms", redelivery_first="200ms") as started:
        yield started


@pytest.fixture(scope="module")
def database_url(postgres: Server) -> str:
    """A PostgreSQL database for the pages of a module, as libpq and SQLAlchemy both read it."""
    password = quote(postgres.password, safe="")
    return f"postgresql://{postgres.user}:{password}@{postgres.host}:{postgres.port}/{postgres.new_database()}"
