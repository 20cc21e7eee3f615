"""A MariaDB, a broker and a bank for the clients that other people wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dtmcli_bank import FAST, Bank, open_bank

from brokers import BrokerProcess, running_broker
from servers import Server


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**FAST) as process:
        yield process


@pytest.fixture
def bank(broker: BrokerProcess, mariadb: Server, tmp_path: Path) -> Iterator[Bank]:
    with open_bank(broker, mariadb, tmp_path) as made:
        yield made
