"""One broker for all pages that do not ask for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker
from servers import postgres

__all__ = ["postgres"]


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1s", check_interval="500ms", redelivery_first="200ms") as started:
        yield started
