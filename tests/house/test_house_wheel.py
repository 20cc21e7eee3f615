"""What a user installs: the package, and nothing that only its source needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from environments import unpacked_wheel

NOT_INSTALLED = ("bench", "benchmarks", "examples", "tests")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_the_package_and_no_benchmark(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"tallystick", "pyspark_tallystick"}
    assert [name for name in NOT_INSTALLED if (installed / "tallystick" / name).exists()] == []


def test_a_wheel_says_that_it_is_typed(installed: Path) -> None:
    assert (installed / "tallystick/py.typed").exists()


def test_the_installed_command_says_where_the_benchmarks_are(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "bench"],
        capture_output=True,
        text=True,
        cwd=installed,
        env={"PYTHONPATH": str(installed)},
        timeout=60,
    )
    assert done.returncode != 0
    assert "in a checkout of the source, `make bench` runs them" in " ".join(done.stderr.split())
