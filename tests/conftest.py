"""Settings that hold for all tests."""

import pytest
from hypothesis import settings

# Time limits are pytest-timeout's business; how long one example takes depends on the machine.
settings.register_profile("tallystick", deadline=None)
settings.load_profile("tallystick")

SLOWEST_FIRST = ("spark", "demo", "faults")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directories with the longest files begin, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.path.parent.name not in SLOWEST_FIRST)
