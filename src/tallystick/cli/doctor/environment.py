"""This machine: Python, packages, the disk under the data directory, and what the tests need."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from tallystick.broker.config import Config
from tallystick.cli.doctor.disk import bare_fdatasync
from tallystick.cli.doctor.finding import Finding
from tallystick.cli.doctor.spark import look_at_spark
from tallystick.core.limits import MIB

LEAST_PYTHON = (3, 11)
EXTRAS = {
    "server": "running a broker",
    "cli": "the command line",
    "arrow": "bulk reads as Arrow",
    "postgresql": "barrier, inbox and outbox in PostgreSQL, and the shared store of a cluster",
    "mysql": "the same in MySQL and MariaDB",
    "sqlalchemy": "the same through SQLAlchemy",
    "redis": "a barrier in Redis, and the shared store of a cluster",
    "mongodb": "a barrier in MongoDB",
    "spark": "topics in Spark and the jobs of `tallystick spark`",
}
PROBE_SECONDS = 0.5
SLOW_SECONDS = 0.020
# No disk, with or without a cache that survives a power cut, takes a write and answers in this time.
TOO_FAST_SECONDS = 0.000_010
ROOM_BYTES = 1024 * MIB

_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(\[[^]]*\])?(>=(?P<least>[\d.]+))?(.*extra == '(?P<extra>[\w-]+)')?")


def look_at_environment(data_dir: Path) -> Iterator[Finding]:
    yield _python()
    yield _packages("")
    yield from (_packages(extra) for extra in EXTRAS)
    yield from look_at_spark()
    yield from _disk(data_dir)
    yield from _test_servers()


def _python() -> Finding:
    has = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= LEAST_PYTHON:
        return Finding("python", "ok", has)
    return Finding("python", "problem", f"{has} is too old", "use Python 3.11 or newer")


def _packages(extra: str) -> Finding:
    """The packages of an extra, or those that everyone needs."""
    lacking = [text for text in map(_lacking, wanted_packages(extra)) if text]
    subject = f"extra {extra}" if extra else "packages"
    if not lacking:
        return Finding(subject, "ok", "installed")
    if extra:
        return Finding(
            subject,
            "note",
            f"{', '.join(lacking)}; it is for {EXTRAS[extra]}",
            f"if you need it: pip install 'tallystick[{extra}]'",
        )
    return Finding(subject, "problem", ", ".join(lacking), "pip install --upgrade tallystick")


def wanted_packages(extra: str) -> list[tuple[str, str]]:
    """Names and least versions, from this installation's own description."""
    parsed = [_REQUIREMENT.match(text) for text in requires("tallystick") or []]
    return [(one["name"], one["least"] or "0") for one in parsed if one and (one["extra"] or "") == extra]


def _lacking(wanted: tuple[str, str]) -> str:
    name, least = wanted
    try:
        has = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    return "" if _numbers(has) >= _numbers(least) else f"{name} {has} is older than {least}"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _disk(data_dir: Path) -> Iterator[Finding]:
    """How fast and how full the disk is. The directory itself may not exist yet: then the place it would be in."""
    place = next(path for path in [data_dir.absolute(), *data_dir.absolute().parents] if path.is_dir())
    try:
        took = bare_fdatasync(place, seconds=PROBE_SECONDS)
    except OSError as error:
        text = f"cannot write in {place}: {error.strerror or error}"
        yield Finding("disk", "problem", text, "choose another --data-dir")
        return
    yield _speed(place, took)
    yield _room(place, shutil.disk_usage(place).free)


def _speed(place: Path, took: float) -> Finding:
    text = f"write and fdatasync in {place}: {took * 1000:.2f} ms (median)"
    if took < TOO_FAST_SECONDS:
        return Finding("disk", "note", text, "this is memory, not a disk: nothing in it survives a power cut")
    if took > SLOW_SECONDS:
        return Finding("disk", "note", text, "every answer waits for this; put the data directory on a faster disk")
    return Finding("disk", "ok", text)


def _room(place: Path, free: int) -> Finding:
    text = f"{free // MIB:,} MiB free in {place}"
    least = Config().min_free_bytes
    if free < least:
        return Finding(
            "space",
            "problem",
            text,
            f"below {least // MIB} MiB the broker refuses messages: free some, or move data_dir",
        )
    if free < ROOM_BYTES:
        return Finding("space", "note", text, "free some before the broker has to refuse messages")
    return Finding("space", "ok", text)


def _test_servers() -> Iterator[Finding]:
    """Only the tests of the project itself start servers."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *_postgres_places()])
    for title, program in (("PostgreSQL", "initdb"), ("MariaDB", "mariadbd"), ("Redis", "redis-server")):
        found = shutil.which(program, path=path)
        if found:
            yield Finding(f"{title} server", "ok", f"{found} (for the tests)")
        else:
            yield Finding(f"{title} server", "note", "not installed", "only `make test` needs it, and installs it")


def _postgres_places() -> list[str]:
    """Debian keeps PostgreSQL's programs out of PATH, one directory for each version."""
    return [str(path) for path in Path("/usr/lib/postgresql").glob("*/bin")]
