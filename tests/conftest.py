"""Settings that hold for all tests."""

import functools
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling, LoadScopeScheduling

from servers import mariadb, postgres, redis

# Servers for all: each worker of a parallel run has one of each that it needs.
__all__ = ["mariadb", "postgres", "redis"]

# Time limits are pytest-timeout's business; how long one example takes depends on the machine.
settings.register_profile("tallystick", deadline=None)
settings.load_profile("tallystick")

ROOT = Path(__file__).parents[1]

# Whatever starts Spark, also by a command in a process of its own, starts it with the settings of the tests.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "spark" / "conf")

BEGIN = ("spark", "faults", "borders", "machine", "demo", "chaos", "examples", "clients", "docs")
USES_SESSION = "spark: SparkSession"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The directories with the longest files begin, so that no worker is left alone with one of them at the end."""
    order = {name: place for place, name in enumerate(BEGIN)}

    def turn(item: pytest.Item) -> tuple[int, bool]:
        return order.get(item.path.parent.name, len(order)), not _uses_session(str(item.path))

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end. To look through it at every collection of garbage would take a
    third of the time of the tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    # The full run has so many tests with a session that one worker would be the last by far.
    return ByFile(config, log) if config.getoption("markexpr") == "not full" else LoadFileScheduling(config, log)


class ByFile(LoadScopeScheduling):
    """The tests of a file stay on one worker, for the servers they share; all files that use a Spark session on one,
    for the Java machine, which takes long to start and gets quicker with time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if _uses_session(file) else file


@functools.cache
def _uses_session(file: str) -> bool:
    return file.rpartition("/")[2].startswith("test_spark_") and USES_SESSION in (ROOT / file).read_text()
