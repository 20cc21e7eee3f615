"""The client's own tests, where only the client is installed. Their brokers run in the full environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from environments import ROOT, SERVER_ONLY, Environment

# What the tests themselves import: their tools, drivers of databases, and web servers of the services in them.
TEST_TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "httpx", "cryptography")
DRIVERS = ("psycopg[binary]", "psycopg-pool", "psycopg2-binary", "asyncpg", "aiosqlite", "redis", "pymongo")
MYSQL_DRIVERS = ("pymysql", "mysqlclient", "mysql-connector-python", "aiomysql", "asyncmy")
MAPPERS = ("sqlalchemy[asyncio]", "sqlmodel", "peewee", "pydantic", "attrs")
SERVICES = ("fastapi", "flask", "gevent", "gunicorn", "uvicorn")
CHOSEN = "not full"
WORKERS = 4
LEAST = 400
"""So many tests there are at least: fewer, and something was not collected."""


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_client_suite_passes_with_only_the_client_installed(installed: Path, tmp_path: Path) -> None:
    environment = Environment(
        tmp_path / "environment", installed, others=(*TEST_TOOLS, *DRIVERS, *MYSQL_DRIVERS, *MAPPERS, *SERVICES)
    )
    there = environment.names & SERVER_ONLY - {"sortedcontainers", "uvicorn"}  # which the tests themselves need
    assert not there, f"the tests would not notice that the client needs {there}"
    found = environment.run("python", "-c", "import tallystick; print(tallystick.__file__)").stdout
    assert Path(found).is_relative_to(environment.site), found
    done = environment.run(
        *("python", "-m", "pytest", str(ROOT / "tests" / "client"), "--rootdir", str(ROOT), "-c"),
        *(str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-q", "-m", CHOSEN),
        *("-n", str(WORKERS), "--dist", "loadfile"),
        env={"BROKER_PYTHON": sys.executable, "BROKER_PATH": os.pathsep.join(sys.path)},
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-2000:]
    assert int(passed[1]) >= LEAST, done.stdout[-2000:]
