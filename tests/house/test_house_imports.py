"""Packages can be imported by several threads at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tallystick

ROOT = Path(tallystick.__file__).parent
# The modules of commands and jobs, which one thread imports.
ONE_THREAD = ("tallystick.cli", "tallystick.spark.jobs")

ENTRY_POINTS = [
    "tallystick:Client",
    "tallystick.barrier:create_tables",
    "tallystick.client:AsyncClient",
    "tallystick.errors:StaleLease",
    "tallystick.dtm:Msg",
    "tallystick.fastapi:",
    "tallystick.flask:",
    "tallystick.local:",
]
IMPORT_AT_ONCE = """
import importlib, sys, threading, traceback

def load(entry):
    module, _, name = entry.partition(":")
    start.wait()
    try:
        loaded = importlib.import_module(module)
        name and getattr(loaded, name)
    except BaseException:
        failures.append(f"{entry}: {traceback.format_exc()}")

entries, failures = sys.argv[1:], []
start = threading.Barrier(len(entries))
threads = [threading.Thread(target=load, args=(entry,)) for entry in entries]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("\\n".join(failures) or 0)
"""


@pytest.mark.parametrize(
    "entries",
    [
        ["tallystick.barrier:create_tables", "tallystick:Client"],
        ["tallystick.barrier.operations.clean:clean", "tallystick.barrier:create_tables", "tallystick:Client"],
        ENTRY_POINTS,
        ENTRY_POINTS[::-1],
    ],
    ids=["two", "three", "all", "reversed"],
)
def test_threads_may_import_entry_points_at_once(entries: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AT_ONCE, *entries], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_package_imports_its_own_modules() -> None:
    """Whoever imports `package.module` holds the lock of the module while the package is imported."""
    found = [
        f"{package} imports {module}"
        for package, tree in packages()
        if not package.startswith(ONE_THREAD)
        for module in imported(tree.body)
        if module.startswith(f"{package}.") and module != "tallystick.extras"
    ]
    assert found == []


def test_every_lazy_name_exists() -> None:
    for package, tree in packages():
        if "lazy_names" in ast.unparse(tree):
            loaded = pytest.importorskip(package)
            for name in loaded.__all__:
                assert getattr(loaded, name) is not None
                assert getattr(loaded, name) is getattr(loaded, name)
            with pytest.raises(AttributeError, match="no_such_name"):
                loaded.no_such_name  # noqa: B018


def packages() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(ROOT.rglob("__init__.py")):
        name = ".".join(("tallystick", *file.relative_to(ROOT).parts[:-1]))
        yield name, ast.parse(file.read_text(encoding="utf-8"))


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """The modules that are imported when this code runs; those of `from package import name` with the name."""
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from imported(statement.orelse)
            case ast.If() | ast.Try():
                yield from imported([*statement.body, *statement.orelse])
