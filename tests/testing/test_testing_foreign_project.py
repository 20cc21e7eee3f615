"""The plugin in a project of somebody else: from a wheel, in an environment of its own, without a conftest."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]

SHOP = """
import sqlite3

from tallystick.barrier import create_tables


def open_shop(path):
    conn = sqlite3.connect(path)
    create_tables(conn)
    conn.execute("create table if not exists orders (item text)")
    conn.commit()
    return conn


def place_order(ts, conn, item):
    with ts.transaction(conn) as tx:
        conn.execute("insert into orders values (?)", (item,))
        tx.send("orders", {"item": item})
"""

BROKEN = SHOP.replace('        tx.send("orders"', '    ts.send("orders"')

TESTS = """
import asyncio

import pytest
from shop import open_shop, place_order
from tallystick.testing import STEPS, crash_at


@pytest.fixture
def conn(tmp_path):
    conn = open_shop(tmp_path / "shop.db")
    yield conn
    conn.close()


def orders(conn):
    return [item for (item,) in conn.execute("select item from orders")]


def test_an_order_is_told(tallystick_broker, tallystick_client, conn):
    place_order(tallystick_client, conn, "hat")
    tallystick_broker.assert_sent("orders", {"item": "hat"}, times=1)


def test_every_test_begins_with_nothing(tallystick_broker):
    tallystick_broker.assert_nothing_sent()


@pytest.mark.parametrize("step", STEPS)
def test_whatever_dies(tallystick_broker, tallystick_client, conn, step):
    with crash_at(step):
        place_order(tallystick_client, conn, "hat")
    tallystick_broker.check_back()
    assert orders(conn) == [message.json()["item"] for message in tallystick_broker.messages("orders")]


def test_asyncio(tallystick_broker, tallystick_async_client, conn):
    async def order():
        async with tallystick_async_client as ts, ts.transaction(conn) as tx:
            tx.send("orders", {"item": "coat"})

    asyncio.run(order())
    tallystick_broker.assert_sent("orders", {"item": "coat"})
"""
COUNT = 11


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; all else that it needs is that of these tests."""
    place = tmp_path_factory.mktemp("foreign")
    venv.create(place / "venv", symlinks=True)
    packages = next((place / "venv" / "lib").glob("python*/site-packages"))
    # What the directory names is not looked at for more such files: a checkout that is installed there stays out.
    (packages / "dependencies.pth").write_text(
        "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) + "\n"
    )
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(place), versions=["standard"])
    with ZipFile(wheel) as files:
        files.extractall(packages)
    return place / "venv" / "bin" / "python"


def run(python: Path, project: Path, *options: str, shop: str = SHOP) -> subprocess.CompletedProcess[str]:
    (project / "shop.py").write_text(shop)
    (project / "test_shop.py").write_text(TESTS)
    (project / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        capture_output=True,
        text=True,
        cwd=project,
        env=environment,
        timeout=280,
    )


def test_the_plugin_comes_with_the_wheel(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path)
    assert f"{COUNT} passed" in done.stdout, done.stdout + done.stderr
    where = subprocess.run(
        [str(python), "-c", "import tallystick; print(tallystick.__file__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={},
    )
    assert where.stdout.startswith(str(python.parents[1])), where.stdout + where.stderr


def test_a_send_outside_the_block_is_caught(python: Path, tmp_path: Path) -> None:
    """The counterpart: a shop that sends by itself, beside its transaction, fails the same tests."""
    done = run(python, tmp_path, shop=BROKEN)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert ["test_whatever_dies[after commit]" in line for line in failed].count(True) == 1, done.stdout
    assert "test_an_order_is_told" not in "".join(failed)


@pytest.mark.full
def test_workers_in_parallel_have_a_broker_each(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-n", "2")
    assert f"{COUNT} passed" in done.stdout, done.stdout + done.stderr


def test_without_the_packages_of_the_broker_it_says_what_to_install(python: Path, tmp_path: Path) -> None:
    (tmp_path / "sortedcontainers.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'sortedcontainers'\", name='sortedcontainers')"
    )
    done = run(python, tmp_path, "-k", "told")
    assert done.returncode == 1
    assert "needs sortedcontainers, which is not installed: pip install 'tallystick[testing]'" in done.stdout


def test_a_run_that_does_not_use_it_loads_next_to_nothing(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(
        "import sys\n"
        "def test_light(request):\n"
        "    assert request.config.pluginmanager.hasplugin('tallystick')\n"
        "    loaded = {name for name in sys.modules if name.startswith('tallystick')}\n"
        "    assert loaded <= {'tallystick', 'tallystick.core', 'tallystick.core.errors', 'tallystick.errors',\n"
        "        'tallystick.extras', 'tallystick.testing', 'tallystick.testing.plugin',\n"
        "        'tallystick.testing.steps'}, loaded\n"
    )
    done = run(python, tmp_path, "test_light.py")
    assert done.returncode == 0, done.stdout + done.stderr
