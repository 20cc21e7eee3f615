"""A MariaDB, a broker and a bank for the clients that other people wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dtmcli_bank import Bank, open_bank

from brokers import BrokerProcess, running_broker
from servers import Server

FAST = {
    "check_timeout": "5s",
    "check_interval": "200ms",
    "check_interval_cap": "1s",
    "call_retry_first": "100ms",
    "call_retry_cap": "500ms",
    "call_probe": "100ms",
    "call_probe_cap": "300ms",
    "log_level": "warning",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**FAST) as process:
        yield process


@pytest.fixture
def bank(broker: BrokerProcess, mariadb: Server, tmp_path: Path) -> Iterator[Bank]:
    with open_bank(broker, mariadb, tmp_path) as made:
        yield made
