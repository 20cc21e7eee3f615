"""Settings that hold for all tests."""

import os
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import settings

from servers import mariadb, postgres, redis

# Servers for all: each worker of a parallel run has one of each that it needs.
__all__ = ["mariadb", "postgres", "redis"]

# Time limits are pytest-timeout's business; how long one example takes depends on the machine.
settings.register_profile("tallystick", deadline=None)
settings.load_profile("tallystick")

# Whatever starts Spark, also by a command in a process of its own, starts it with the settings of the tests.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

COMPUTING, WAITING = ("spark",), ("faults", "demo", "examples", "clients", "borders", "machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directories with the longest files begin, so that no worker is left alone with one of them at the end: those
    that use the processor in turn with those that wait for processes to die and to come back."""
    files = dict.fromkeys(item.path for item in items)
    computing = [path for path in files if path.parent.name in COMPUTING]
    waiting = [path for path in files if path.parent.name in WAITING]
    in_turn = [path for pair in zip_longest(computing, waiting) for path in pair if path is not None]
    place = {path: number for number, path in enumerate(in_turn)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
