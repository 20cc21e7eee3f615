"""`tallystick[spark]` alone: a driver and its workers with the client, Spark, and nothing of the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

import tallystick
from brokers import running_broker
from environments import SERVER_ONLY, Environment

EVERY_MODULE = """
import importlib, pkgutil, sys
import pyspark_tallystick, tallystick.spark, tallystick.cli.spark
assert pyspark_tallystick.DefaultSource
for package in (tallystick.spark, tallystick.cli.spark):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(sum(name.startswith(("tallystick.spark.", "tallystick.cli.spark.")) for name in sys.modules))
"""

# Reads a topic in the workers, sends what it has found to another one from there, and commits that in the driver.
DOUBLED = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
at = {"url": sys.argv[1]}
found = spark.read.format("tallystick").options(**at, subscribe="orders").load()
doubled = found.selectExpr("key", "concat(cast(value as string), value) as value")
sink = doubled.write.format("tallystick").mode("append")
sink.options(**at, topic="doubled", txnAppId="light", txnVersion="1").save()
spark.stop()
"""


@pytest.mark.full
@pytest.mark.spark
def test_source_sink_and_jobs_need_no_more_than_their_extra(installed: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment", installed, ["spark"])
    assert not environment.names & (SERVER_ONLY - {"rich", "typer"})
    imported = environment.run("python", "-c", EVERY_MODULE)
    assert imported.returncode == 0, imported.stderr
    assert int(imported.stdout) > 40
    with running_broker() as broker, tallystick.Client(broker.url) as ts:
        ts.send_many([tallystick.outgoing("orders", str(number), key="k") for number in range(20)])
        python = {"PYSPARK_PYTHON": str(environment.python)}
        done = environment.run("python", "-c", DOUBLED, broker.url, env=python, timeout=240)
        assert done.returncode == 0, done.stderr[-6000:]
        queues = range(ts.topic("doubled").queues)
        found = [message.value.decode() for queue in queues for message in ts.fetch("doubled", queue, 0).messages]
    assert sorted(found) == sorted(f"{number}{number}" for number in range(20))
