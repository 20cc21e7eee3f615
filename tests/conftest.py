"""Settings that hold for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Time limits are pytest-timeout's business; how long one example takes depends on the machine.
settings.register_profile("tallystick", deadline=None)
settings.load_profile("tallystick")

# Whatever starts Spark, also by a command in a process of its own, starts it with the settings of the tests.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

SLOWEST_FIRST = ("spark", "demo", "faults", "examples")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directories with the longest files begin, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.path.parent.name not in SLOWEST_FIRST)
