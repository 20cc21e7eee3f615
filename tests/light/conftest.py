"""The wheel of this source, and an environment with nothing but the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments import Environment, unpacked_wheel


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def client_only(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("client-only") / "environment", installed)
    environment.compile()
    return environment
