"""Servers, databases and processes for the fault tests; each worker of a parallel run has its own servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import small_disk
from places import Place, server_place, sqlite_place

from fork_server import ForkServer

__all__ = ["small_disk"]


@pytest.fixture(
    params=[
        pytest.param("sqlite"),
        pytest.param("postgres", marks=[pytest.mark.postgresql, pytest.mark.full]),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A service's own database, on each engine."""
    if request.param == "sqlite":
        return sqlite_place(tmp_path / "service.db")
    return server_place(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Where processes that are to be killed or stopped come from."""
    with ForkServer(tmp_path_factory.mktemp("crew"), "producer_main", "consumer_main") as server:
        yield server
