"""Environments as `pip install` would make them, without asking a package index: the wheel of this source, and the
distributions that it requires as they are installed here. Files are real, so sizes, imports and messages are, too."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SERVER_ONLY = {
    *("grpcio", "grpcio-reflection", "prometheus-client", "protobuf", "rocksdict", "sortedcontainers", "uvicorn"),
    *("uvloop", "aiohttp", "yarl", "rich", "typer"),
}
"""What services must not get with the client."""


class Environment:
    """A virtual environment with the package, some of its extras, and whatever else the tests themselves need."""

    def __init__(
        self, directory: Path, installed: Path, extras: Iterable[str] = (), others: Iterable[str] = ()
    ) -> None:
        venv.create(directory, symlinks=True, with_pip=False)
        self.directory = directory
        self.python = directory / "bin" / "python"
        (self.site,) = directory.glob("lib/python*/site-packages")
        shutil.copytree(installed, self.site, dirs_exist_ok=True)
        self.names = closure([*of_package(installed, extras), *map(Requirement, others)])
        for name in self.names:
            _link_files(distribution(name), self.site)
        _write_script(package(installed), directory / "bin" / "tallystick", self.python)

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, or `python`. It knows nothing of the environment that the tests run in."""
        program = str(self.directory / "bin" / command[0])
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TALLY"))}
        return subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=options.pop("timeout", 120),
            cwd=self.directory,
            env=environment | options.pop("env", {}),
            **options,
        )

    def compile(self) -> None:
        """Make the bytecode, as pip does: it weighs something, and saves time."""
        compileall.compile_dir(self.site, quiet=2)

    def size(self) -> int:
        """Bytes of all that is installed."""
        return sum(path.stat().st_size for path in self.site.rglob("*") if path.is_file())


def unpacked_wheel(directory: Path) -> Path:
    """What a wheel of this source puts into an environment."""
    with ZipFile(build_wheel(directory)) as files:
        files.extractall(directory / "installed")
    return directory / "installed"


def build_wheel(directory: Path) -> Path:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(directory), versions=["standard"])
    return Path(wheel)


def package(installed: Path) -> Distribution:
    (described,) = installed.glob("tallystick-*.dist-info")
    return PathDistribution(described)


def extras_of(installed: Path) -> set[str]:
    """Those that users choose from."""
    return set(package(installed).metadata.get_all("Provides-Extra") or []) - {"dev"}


def of_package(installed: Path, extras: Iterable[str] = ()) -> list[Requirement]:
    """What the package requires, alone or with extras."""
    return _chosen(package(installed), extras)


def _chosen(described: Distribution, extras: Iterable[str]) -> list[Requirement]:
    wanted = ["", *extras]
    parsed = map(Requirement, described.requires or [])
    return [one for one in parsed if one.marker is None or any(one.marker.evaluate({"extra": it}) for it in wanted)]


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """The names of everything that gets installed for some requirements. Versions are those that are here."""
    found: set[str] = set()
    looked_at: set[tuple[str, str]] = set()
    waiting = list(requirements)
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        new = {(name, extra) for extra in ("", *one.extras)} - looked_at
        if new:
            looked_at |= new
            found.add(name)
            waiting += _chosen(distribution(name), one.extras)
    return found


def _link_files(described: Distribution, site: Path) -> None:
    """Hard links, where the file system allows them: Spark alone is half a gigabyte."""
    for file in described.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # programs and the like; bytecode is made here, if at all
        place = site / file
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(Path(str(file.locate())).resolve(), place)
        except OSError:
            shutil.copy2(str(file.locate()), place)


def _write_script(described: Distribution, place: Path, python: Path) -> None:
    (command,) = described.entry_points.select(group="console_scripts", name="tallystick")
    place.write_text(
        f"#!{python}\nimport sys\nfrom {command.module} import {command.attr}\nsys.exit({command.attr}())\n"
    )
    place.chmod(0o755)


def import_seconds(python: Path | str, code: str) -> float:
    """What a piece of code takes in a new interpreter, after the interpreter has started."""
    timed = f"import time\nbegun = time.perf_counter()\n{code}\nprint(time.perf_counter() - begun)"
    done = subprocess.run([str(python), "-I", "-c", timed], capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)
