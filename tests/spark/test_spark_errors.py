"""Errors as Spark shows them: where the documents say that they are found."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from source_support import new_topic, produce, trim

import tallystick.spark
from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core import errors
from tallystick.core.errors import DataLoss, TallystickError
from tallystick.spark.tasks import raised_there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

IN_THE_USERS_PROCESS = {"JavaMissing", "SparkMissing", "DriverMissing", "ReplayFailed"}


def test_every_error_of_sparks_processes_is_in_one_module() -> None:
    """A reader of a traceback looks for its last line that begins with this module's name."""
    for found in walk_packages(tallystick.spark.__path__, "tallystick.spark."):
        import_module(found.name)
    elsewhere = {
        kind.__name__
        for kind in _family(TallystickError)
        if kind.__module__.startswith("tallystick.spark.") and kind.__name__ not in IN_THE_USERS_PROCESS
    }
    assert elsewhere == set()


def _family(root: type[TallystickError]) -> set[type[TallystickError]]:
    return {root}.union(*map(_family, root.__subclasses__()))


def test_data_loss_is_shown_under_that_module(spark: SparkSession, broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client)
    produce(client, topic, 40)
    starts = f'{{"{topic}": {{"0": 0, "1": 0}}}}'
    trim(client, topic, q0=2, q1=2)
    read = spark.read.format("tallystick").option("url", broker.url).option("startingOffsets", starts)
    with pytest.raises(PySparkException) as failed:
        read.load(topic).count()
    shown = [line for line in str(failed.value).splitlines() if line.startswith(errors.__name__)]
    assert shown[-1].startswith(f"{errors.__name__}.DataLoss: {topic}/")
    assert isinstance(raised_there(str(failed.value)), DataLoss)
