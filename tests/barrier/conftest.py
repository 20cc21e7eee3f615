"""A database for each test, over each driver."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from parties import KINDS, Place, every_kind, prepare_database

_SERVERS = {"postgresql": "postgres", "mysql": "mariadb"}


@pytest.fixture(params=every_kind())
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    fixture = _SERVERS.get(KINDS[kind])
    server = request.getfixturevalue(fixture) if fixture else None
    place = Place(kind, tmp_path / "service.db", server)
    prepare_database(place)
    yield place
    await place.close()


@pytest.fixture
def gid() -> str:
    return f"gid-{uuid.uuid4().hex}"
