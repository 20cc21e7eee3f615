"""The fixtures are those of the plugin, from this checkout, whether or not an installed one offers them as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testing_shop import Shop

from tallystick.testing.plugin import (
    _tallystick_broker,
    tallystick_async_client,
    tallystick_broker,
    tallystick_client,
    tallystick_crash,
)

__all__ = [
    "_tallystick_broker",
    "tallystick_async_client",
    "tallystick_broker",
    "tallystick_client",
    "tallystick_crash",
]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    yield made
    made.close()
