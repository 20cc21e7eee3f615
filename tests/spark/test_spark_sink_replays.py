"""Batches that Spark runs again, under a real Spark: from a checkpoint that was put back, and from input that gives
other rows each time. What is not the batch that was committed is not taken for it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sink_support import NOTHING, content, difference, expected, rows
from sink_support_query import Pipeline

from brokers import BrokerProcess
from tallystick.core.ids import new_gid

pytestmark = pytest.mark.spark


@pytest.fixture
def pipeline(broker: BrokerProcess, tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path / new_gid(), broker.url, total=20)


@pytest.fixture(scope="module")
def backed_up(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return _backed_up(spark, Pipeline(tmp_path_factory.mktemp("backed-up") / new_gid(), broker.url, total=20))


@pytest.fixture
def put_back(backed_up: Pipeline) -> Pipeline:
    """For tests that leave the topic and the ledger as they are."""
    return _put_back(backed_up)


def _backed_up(spark: SparkSession, pipeline: Pipeline) -> Pipeline:
    """Batch 0, a backup of the checkpoint, batch 1."""
    assert pipeline.run(spark) == ""
    shutil.copytree(pipeline.directory / "checkpoint", pipeline.directory / "backup")
    pipeline.settings.update(total=40)
    assert pipeline.run(spark) == ""
    return pipeline


def _put_back(pipeline: Pipeline) -> Pipeline:
    checkpoint = pipeline.directory / "checkpoint"
    shutil.rmtree(checkpoint)
    shutil.copytree(pipeline.directory / "backup", checkpoint)
    assert pipeline.logged("commits") == [0]
    pipeline.settings.update(total=40, perBatch=20, splits=2)
    return pipeline


@pytest.mark.parametrize(
    ("total", "found"), [(45, "20 rows then, 25 now"), pytest.param(39, "20 rows then, 19 now", marks=pytest.mark.full)]
)
@pytest.mark.full
def test_a_checkpoint_that_is_one_batch_older_than_the_ledger(
    spark: SparkSession, put_back: Pipeline, total: int, found: str
) -> None:
    """25 rows in, 20 out: the query fails, and says so again when it is started again."""
    put_back.settings.update(total=total, perBatch=25)
    for _ in range(2):
        failure = put_back.run(spark)
        assert found in failure
        assert "older than the broker's ledger (a restored backup)" in failure
        assert put_back.logged("commits") == [0]
    assert difference(put_back.url, put_back.topic, expected(0, 40)) == NOTHING


@pytest.mark.full
def test_as_many_other_rows_are_noticed_too(spark: SparkSession, put_back: Pipeline) -> None:
    source = spark.readStream.format("numbers").option("faults", str(put_back.faults)).options(**put_back.settings)
    changed = source.load().select(F.concat(F.lit("changed-"), "value").alias("value"))
    assert "20 rows both times, but not the same" in put_back.run(spark, changed)
    assert difference(put_back.url, put_back.topic, expected(0, 40)) == NOTHING


@pytest.mark.full
def test_the_same_rows_from_a_checkpoint_that_was_put_back_are_fine(spark: SparkSession, put_back: Pipeline) -> None:
    put_back.settings.update(splits=5)
    assert put_back.run(spark) == ""
    assert put_back.logged("commits") == [0, 1]
    assert difference(put_back.url, put_back.topic, expected(0, 40)) == NOTHING


@pytest.mark.full
@pytest.mark.parametrize("way", ["drop", "write"])
def test_there_are_two_ways_out(spark: SparkSession, pipeline: Pipeline, way: str) -> None:
    """What the topic has counts as this batch, or all of it is written once more under another id."""
    _put_back(_backed_up(spark, pipeline))
    pipeline.settings.update(total=45, perBatch=25)
    pipeline.sink_options = {"failOnDifferentReplay": "false"} if way == "drop" else {"txnAppId": new_gid()}
    assert pipeline.run(spark) == ""
    again = expected(20, 45 if way == "write" else 20)
    assert content(pipeline.url, pipeline.topic) == expected(0, 40) + again
    pipeline.settings.update(total=60)
    assert pipeline.run(spark) == ""
    assert content(pipeline.url, pipeline.topic) == expected(0, 40) + again + expected(45, 60)


def _with_chance(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    source = spark.readStream.format("numbers").option("faults", str(pipeline.faults)).options(**pipeline.settings)
    return source.load().select("value", F.expr("uuid()").alias("key"))


@pytest.mark.full
@pytest.mark.fault
def test_a_query_that_gives_other_rows_each_time(spark: SparkSession, pipeline: Pipeline) -> None:
    """Its batch is committed, its driver fails before Spark has noted it: the replay has other keys."""
    pipeline.arm(committed_0="raise")
    assert "a fault at committed.0" in pipeline.run(spark, _with_chance(spark, pipeline))
    sent = {row["key"] for row in rows(pipeline.url, pipeline.topic)}
    assert "20 rows both times, but not the same" in pipeline.run(spark, _with_chance(spark, pipeline))
    pipeline.sink_options = {"failOnDifferentReplay": "false"}
    assert pipeline.run(spark, _with_chance(spark, pipeline)) == ""
    assert {row["key"] for row in rows(pipeline.url, pipeline.topic)} == sent
    assert difference(pipeline.url, pipeline.topic, expected(0, 20)) == NOTHING


@pytest.mark.full
@pytest.mark.fault
def test_the_clock_of_a_batch_is_the_same_when_it_is_run_again(spark: SparkSession, pipeline: Pipeline) -> None:
    """Spark keeps what current_timestamp() was, so a query may use it."""
    numbers = spark.readStream.format("numbers").option("faults", str(pipeline.faults)).options(**pipeline.settings)
    stamped = numbers.load().select("value", F.current_timestamp().cast("string").alias("key"))
    pipeline.arm(committed_0="raise")
    assert "a fault at committed.0" in pipeline.run(spark, stamped)
    assert pipeline.run(spark, stamped) == ""


def test_a_batch_write_of_another_table_under_a_known_number(spark: SparkSession, broker: BrokerProcess) -> None:
    topic = f"t-{new_gid()}"

    def write(first: int, version: int, tasks: int, **more: str) -> None:
        frame = spark.range(first, first + 50, numPartitions=tasks).select(F.col("id").cast("string").alias("value"))
        options = {"url": broker.url, "topic": topic, "txnAppId": topic, "txnVersion": str(version), **more}
        frame.write.format("tallystick").options(**options).mode("append").save()

    write(0, 1, 2)
    write(50, 2, 2)
    write(50, 2, 5)
    write(0, 1, 3)
    for version in (1, 2):
        with pytest.raises(PySparkException, match="50 rows both times, but not the same"):
            write(7, version, 2)
    write(7, 2, 2, failOnDifferentReplay="false")
    assert difference(broker.url, topic, expected(0, 100)) == NOTHING
