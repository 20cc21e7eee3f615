"""One broker for the tests of a file, and the API spoken by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made
