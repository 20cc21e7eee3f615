"""Spark: topics as streams and tables, results as transactional messages, and the jobs that need the whole history.

from tallystick.spark import register

register(spark)
spark.readStream.format("tallystick").option("url", "http://127.0.0.1:7440").option("subscribe", "orders").load()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.format import TallystickSource

__all__ = ["TallystickSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("tallystick")` known to a session. Not needed where the package `pyspark_tallystick` is found."""
    spark.dataSource.register(import_module("tallystick.spark.format").TallystickSource)


def __getattr__(name: str) -> Any:
    # Late: the jobs' commands show their help where Spark is not installed.
    if name == "TallystickSource":
        return import_module("tallystick.spark.format").TallystickSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
