"""Databases for the broker's check-back, on each engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import Server
from service_database import Service

ENGINES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | Server:
    """Where a database can be made."""
    return tmp_path / "service.db" if request.param == "sqlite" else request.getfixturevalue(request.param)


@pytest.fixture
def service(place: Path | Server) -> Service:
    return Service(place)
