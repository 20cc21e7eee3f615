"""What the jobs on Spark need beside the Python packages: Java, JDBC drivers, and a Spark that finds our format."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from tallystick.cli.doctor.finding import Finding
from tallystick.core.errors import TallystickError
from tallystick.spark.java import find_java
from tallystick.spark.jdbc import JARS_VARIABLE, found_drivers

_TITLES = {"postgresql": "PostgreSQL", "mysql": "MySQL and MariaDB"}  # the jobs read SQLite without a driver


def look_at_spark() -> Iterator[Finding]:
    """Nothing of this is a problem: a service and its broker do without Spark."""
    yield _java()
    yield _drivers()
    if find_spec("pyspark") is not None:
        yield _format()


def _java() -> Finding:
    try:
        java = find_java()
    except TallystickError as error:
        text, _, advice = error.detail.partition(". ")
        return Finding("Java", "note", f"{text}; the jobs on Spark need it", advice)
    return Finding("Java", "ok", f"{java.version} in {java.home} ({java.found})")


def _drivers() -> Finding:
    """One line for all of them: few have every database."""
    drivers = [driver for driver in found_drivers() if driver.engine in _TITLES]
    missing = [driver for driver in drivers if driver.jar is None]
    text = "; ".join(f"{_TITLES[driver.engine]}: {driver.jar or 'not found'}" for driver in drivers)
    if not missing:
        return Finding("JDBC drivers", "ok", text)
    return Finding(
        "JDBC drivers",
        "note",
        text,
        "if a job is to read such a database: apt-get install "
        f"{' '.join(driver.package for driver in missing)}, or name the jar with --jars or in {JARS_VARIABLE}",
    )


def _format() -> Finding:
    import pyspark_tallystick

    if hasattr(pyspark_tallystick, "DefaultSource"):
        return Finding("Spark format", "ok", 'Spark finds format("tallystick") without registration')
    return Finding(
        "Spark format",
        "note",
        'Spark does not find format("tallystick"): tallystick.spark cannot be imported',
        "pip install --upgrade 'tallystick[spark]'",
    )
