"""The sink under a real Spark: batch, streams, SQL, foreachBatch, and the faults that leave the JVM alive."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sink_support import NOTHING, Play, content, difference, expected, last, numbers, rows
from sink_support_query import Pipeline
from stream_runs import run_to_end

from brokers import BrokerProcess
from tallystick.core.ids import new_gid

# The first test starts Spark, which takes its time on a busy machine.
pytestmark = pytest.mark.spark


@pytest.fixture
def topic() -> str:
    return f"t-{new_gid()}"


@pytest.fixture
def pipeline(broker: BrokerProcess, tmp_path: Path) -> Pipeline:
    """Two batches of 20 rows, in two tasks each."""
    return Pipeline(tmp_path / new_gid(), broker.url, total=40)


def _numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, numPartitions=2).select(F.col("id").cast("string").alias("value"))


# --- without faults --------------------------------------------------------------------------------------------------


def test_a_dataframe_is_written_with_its_columns(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    frame = _numbers(spark, 0, 1000).select(
        F.lit(topic).alias("topic"),
        F.concat(F.lit("k"), F.col("value")).alias("key"),
        F.create_map(F.lit("n"), F.col("value")).alias("headers"),
        F.current_timestamp().alias("deliver_at"),
        F.encode("value", "UTF-8").alias("value"),
    )
    frame.write.format("tallystick").option("url", broker.url).mode("append").save()
    found = rows(broker.url, topic)
    assert difference(broker.url, topic, expected(0, 1000)) == NOTHING
    assert all(row["key"] == f"k{dict(row['headers'])['n']}" == f"k{row['value'].decode()}" for row in found)
    assert sorted(row["sequence"] for row in found) == list(range(1000))


def test_an_empty_dataframe_is_written_as_nothing(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    app = new_gid()
    options = {"url": broker.url, "topic": topic, "txnAppId": app, "txnVersion": "5"}
    _numbers(spark, 0, 10).filter("value = 'x'").write.format("tallystick").options(**options).mode("append").save()
    assert last(broker.url, app) == 5
    assert content(broker.url, topic) == {}


def test_what_is_wrong_is_told_before_anything_runs(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    frame = spark.range(3).withColumnRenamed("id", "amount")
    writer = frame.write.format("tallystick").option("url", broker.url).option("topic", topic)
    with pytest.raises(PySparkException, match="the sink has no column 'amount'"):
        writer.mode("append").save()
    with pytest.raises(PySparkException, match=r"a topic cannot be overwritten: use \.mode\('append'\)"):
        _numbers(spark, 0, 1).write.format("tallystick").option("url", broker.url).option("topic", topic).mode(
            "overwrite"
        ).save()


def test_complete_mode_is_refused(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    counts = (
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().groupBy(F.lit("all").alias("key"))
    )
    writer = counts.agg(F.count("*").cast("string").alias("value")).writeStream.format("tallystick")
    writer = writer.option("url", broker.url).option("topic", topic).option("checkpointLocation", str(tmp_path))
    query = writer.outputMode("complete").start()
    with pytest.raises(StreamingQueryException, match=r"outputMode\('complete'\) has no meaning here"):
        query.awaitTermination(60)
    query.stop()


def test_a_stream_is_written_once_a_batch(spark: SparkSession, pipeline: Pipeline) -> None:
    assert pipeline.run(spark) == ""
    assert difference(pipeline.url, pipeline.topic, expected(0, 40)) == NOTHING
    assert [call[:2] for call in pipeline.calls()] == [["commit", 0], ["commit", 1]]
    assert len({row["gid"] for row in rows(pipeline.url, pipeline.topic)}) == 2


@pytest.mark.full
def test_for_each_batch_fans_out_to_two_topics_once_each(spark: SparkSession, pipeline: Pipeline, topic: str) -> None:
    """The function fails after both writes; Spark runs the batch again, and neither topic gets it twice."""
    failures = ["once"]

    def fan_out(batch: DataFrame, number: int) -> None:
        for name in ("a", "b"):
            options = {"url": pipeline.url, "topic": f"{topic}-{name}", "txnAppId": f"{topic}-{name}"}
            writer = batch.write.format("tallystick").options(**options).option("txnVersion", number)
            writer.mode("append").save()
        if number == 1 and failures:
            failures.pop()
            raise RuntimeError("after both")

    def run() -> None:
        writer = pipeline.numbers(spark).writeStream.foreachBatch(fan_out)
        writer = writer.option("checkpointLocation", str(pipeline.directory / "fan-out"))
        run_to_end(writer.trigger(availableNow=True).start)

    with pytest.raises(StreamingQueryException, match="after both"):
        run()
    run()
    for name in ("a", "b"):
        assert difference(pipeline.url, f"{topic}-{name}", expected(0, 40)) == NOTHING


# --- with faults -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.fault
def test_a_task_that_fails_after_sending_fails_a_query_without_retries(spark: SparkSession, pipeline: Pipeline) -> None:
    """C2 of the fault table: the failed task's part is named to nobody. It is never visible."""
    pipeline.arm(sent_1="raise")
    assert "a fault at sent.1" in pipeline.run(spark)
    assert difference(pipeline.url, pipeline.topic, expected(0, 20)) == NOTHING
    (aborted,) = [call for call in pipeline.calls() if call[0] == "abort"]
    assert None in aborted[2]
    assert pipeline.run(spark) == ""
    assert difference(pipeline.url, pipeline.topic, expected(0, 40)) == NOTHING


@pytest.mark.fault
@pytest.mark.parametrize("point", [pytest.param("commit", marks=pytest.mark.full), "committed"])
def test_a_commit_that_raises_before_or_after_it_is_applied(
    spark: SparkSession, pipeline: Pipeline, point: str
) -> None:
    """E1 and E2: Spark calls abort with every message in both; the one that was applied stays."""
    pipeline.arm(**{f"{point}_1": "raise"})
    assert f"a fault at {point}.1" in pipeline.run(spark)
    (aborted,) = [call for call in pipeline.calls() if call[0] == "abort"]
    assert sum(count for _, count in aborted[2]) == 20
    seen = 20 if point == "commit" else 40
    assert difference(pipeline.url, pipeline.topic, expected(0, seen)) == NOTHING
    pipeline.settings.update(splits=5, total=60)
    assert pipeline.run(spark) == ""
    assert difference(pipeline.url, pipeline.topic, expected(0, 60)) == NOTHING
    replayed = [call for call in pipeline.calls() if call[:2] == ["commit", 1]][-1]
    assert len(replayed[2]) == 5


@pytest.mark.fault
def test_a_sink_without_the_ledger_is_caught(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """The negative control: the same fault and the same checker, and the replayed batch is there twice."""
    pipeline = Pipeline(tmp_path / new_gid(), broker.url, sink="forgetful", total=40)
    pipeline.arm(committed_1="raise")
    assert "a fault at committed.1" in pipeline.run(spark)
    assert pipeline.run(spark) == ""
    found = difference(pipeline.url, pipeline.topic, expected(0, 40))
    assert found["duplicated"] == sorted(map(str, range(20, 40)))
    assert found["lost"] == found["strange"] == []


@pytest.mark.full
@pytest.mark.fault
def test_a_query_that_is_stopped_while_it_writes(spark: SparkSession, pipeline: Pipeline) -> None:
    """F of the fault table."""
    pipeline.arm(sending_1="wait")
    query = pipeline.start(spark)
    pipeline.reached("sending.1")
    query.stop()
    pipeline.go_on("sending.1")
    assert difference(pipeline.url, pipeline.topic, expected(0, 20)) == NOTHING
    assert pipeline.run(spark) == ""
    assert difference(pipeline.url, pipeline.topic, expected(0, 40)) == NOTHING


@pytest.mark.fault
@pytest.mark.parametrize("point", ["sending.1", pytest.param("commit.1", marks=pytest.mark.full)])
def test_a_broker_that_is_killed_and_comes_back(
    spark: SparkSession, broker: BrokerProcess, pipeline: Pipeline, point: str
) -> None:
    """During a task's prepare, and before the driver's commit: nothing fails, Spark does not even notice."""
    pipeline.arm(**{point.replace(".", "_"): "wait"})
    query = pipeline.start(spark)
    pipeline.reached(point)
    broker.kill()
    pipeline.go_on(point)
    broker.start()
    query.awaitTermination(60)
    assert query.exception() is None
    assert difference(pipeline.url, pipeline.topic, expected(0, 40)) == NOTHING
    assert [call[0] for call in pipeline.calls()] == ["commit"] * 2


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.parametrize(
    ("start", "first", "fault"), [("latest", 10, "committed"), ("earliest", 0, "committed"), ("earliest", 0, "commit")]
)
def test_from_topic_to_topic_though_the_first_batch_fails(
    spark: SparkSession, pipeline: Pipeline, topic: str, start: str, first: int, fault: str
) -> None:
    """G of the fault table, from end to end: a query whose batch 0 fails, before or after it is applied. What is sent
    before its restart is neither lost nor doubled, nor does batch 0 hold other rows than it did: the sink compares."""

    def run() -> str:
        source = spark.readStream.format("tallystick").option("url", pipeline.url).option("topic", topic)
        return pipeline.run(spark, source.option("startingOffsets", start).load().select("key", "value"))

    Play(pipeline.url, topic, txnAppId=topic).run(0, numbers(0, 10))
    pipeline.arm(**{f"{fault}_0": "raise"})
    assert f"a fault at {fault}.0" in run()
    Play(pipeline.url, topic, txnAppId=topic).run(1, numbers(10, 30))
    pipeline.arm(committed_1="raise")
    assert "a fault at committed.1" in run()
    Play(pipeline.url, topic, txnAppId=topic).run(2, numbers(30, 40))
    assert run() == ""
    assert difference(pipeline.url, pipeline.topic, expected(first, 40)) == NOTHING


@pytest.mark.full
@pytest.mark.fault
def test_two_drivers_on_one_query_write_each_batch_once(spark: SparkSession, pipeline: Pipeline) -> None:
    """One is held before its commit, as by a long pause. Another, played by hand, takes over and goes on; then the
    first wakes up: it changes nothing, and stops."""
    pipeline.arm(commit_1="wait")
    held = pipeline.start(spark)
    pipeline.reached("commit.1")
    other = Play(pipeline.url, pipeline.topic, query=str(held.id))
    other.run(1, numbers(20, 27), numbers(27, 35), numbers(35, 45))  # not the rows that the first one has
    other.run(2, numbers(45, 60))
    pipeline.go_on("commit.1")
    with pytest.raises(StreamingQueryException, match="Another driver runs this query"):
        held.awaitTermination(60)
    held.stop()
    assert difference(pipeline.url, pipeline.topic, expected(0, 60)) == NOTHING
