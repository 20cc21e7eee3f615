"""Servers for the examples' parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker
from servers import redis

__all__ = ["redis"]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1s", check_interval="500ms", call_retry_first="200ms") as started:
        yield started
