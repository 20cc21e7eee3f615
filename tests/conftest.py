"""Settings that hold for all tests."""

import os
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

BEGIN = ("faults", "borders", "machine", "demo", "examples", "clients", "docs")


@pytest.hookimpl(tryfirst=True)  # before xdist looks who belongs to whom
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file stay on one worker, for the servers they share; all that use a Spark session on one, for the
    Java machine, which takes long to start and gets quicker with time. That one begins with them and is busy with them
    for long; the others begin with the directories of the longest files, so that none is left alone at the end."""
    with_session = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}

    def turn(item: pytest.Item) -> int:
        if item.path in with_session:
            return -1
        directory = item.path.parent.name
        return BEGIN.index(directory) if directory in BEGIN else len(BEGIN)

    items.sort(key=turn)
    for item in items:
        group = "spark" if item.path in with_session else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
