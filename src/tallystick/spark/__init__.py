"""Spark: topics as streams and tables, results as transactional messages, and the jobs that need the whole history.

from tallystick.spark import register

register(spark)
spark.readStream.format("tallystick").option("url", "http://127.0.0.1:7440").option("subscribe", "orders").load()
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.format import TallystickSource

__all__ = ["TallystickSource", "register"]

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def register(spark: SparkSession) -> None:
    """Make `format("tallystick")` known to a session. Not needed where the package `pyspark_tallystick` is found."""
    if trouble := unreadable(spark):
        logging.getLogger(__name__).warning("%s", trouble)
    spark.dataSource.register(import_module("tallystick.spark.format").TallystickSource)


def unreadable(spark: SparkSession) -> str:
    """Why PySpark fails on every read of a source that is written in Python, or an empty string. Its own error is an
    AssertionError that names no setting, and the source is not asked before it."""
    rows = str(spark.conf.get(ARROW_ROWS, "10000"))
    if rows.isdigit() and int(rows) > 0:
        return ""
    return f"{ARROW_ROWS}: PySpark reads a Python source only with at least 1 (got {rows}). Set it to 10000"


def __getattr__(name: str) -> Any:
    # Late: the jobs' commands show their help where Spark is not installed.
    if name == "TallystickSource":
        return import_module("tallystick.spark.format").TallystickSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
