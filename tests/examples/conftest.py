"""Servers for the examples' parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers import BrokerProcess, running_broker

sys.path.append(str(Path(__file__).parents[2] / "examples"))  # what they share


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1s", check_interval="500ms", call_retry_first="200ms") as started:
        yield started
