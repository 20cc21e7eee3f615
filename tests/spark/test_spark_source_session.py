"""The source in Spark itself: batches and streams, restarts from the checkpoint, a broker that dies meanwhile."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from source_support import Row, new_topic, produce, put_topic, trim, truth
from stream_runs import begin, run_to_end

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.spark.schema import topic_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> Counter[Row]:
    """What Spark has, in the form of `truth`; times as Spark itself counts them."""
    chosen = frame.selectExpr(
        "topic", "queue", "offset", "key", "value", "tag", "sequence", "unix_millis(timestamp)", "unix_millis(born_at)"
    )
    return Counter((*row[:4], bytes(row[4]), *row[5:]) for row in chosen.collect())


def load(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    return spark.read.format("tallystick").options(url=broker.url, **options).load()


class Query:
    """A streaming query to Parquet, whose sink takes each batch once, and its checkpoint."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, directory: Path, **options: str) -> None:
        self.spark, self.directory = spark, directory
        self.options = {"url": broker.url, **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self.spark.readStream.format("tallystick").options(**self.options).load()
        writing = stream.writeStream.format("parquet").option("checkpointLocation", f"{self.directory}/checkpoint")
        return begin(lambda: (writing.trigger(**trigger) if trigger else writing).start(f"{self.directory}/rows"))

    def run(self) -> list[int]:
        """Read all that is there; the number of rows of each batch."""
        query = run_to_end(lambda: self.start(availableNow=True))
        return [progress["numInputRows"] for progress in query.recentProgress]

    def rows(self) -> Counter[Row]:
        return rows(self.spark.read.schema(topic_schema()).parquet(f"{self.directory}/rows"))

    def batches(self) -> list[str]:
        return sorted(file.name for file in (self.directory / "checkpoint" / "offsets").glob("[0-9]*"))

    def forget_commit(self, number: int) -> None:
        """As if the driver had died between a batch's work and its commit."""
        self._forget("commits", number)

    def back_to_batch_0(self) -> None:
        """As if the driver had died in its first batch, and nothing had been written."""
        later = [number for number in map(int, self.batches()) if number]
        self._forget("offsets", *later)
        self._forget("commits", 0, *later)
        shutil.rmtree(self.directory / "rows")

    def _forget(self, log: str, *numbers: int) -> None:
        for number in numbers:
            for name in (f"{number}", f".{number}.crc"):
                (self.directory / "checkpoint" / log / name).unlink()


def test_a_batch_is_a_table_with_the_columns_of_a_topic(
    spark: SparkSession, broker: BrokerProcess, client: RawClient
) -> None:
    topic = new_topic(client)
    produce(client, topic, 500)
    frame = load(spark, broker, subscribe=topic, minPartitions="5")
    assert frame.schema == topic_schema()
    assert frame.rdd.getNumPartitions() >= 5
    assert rows(frame) == truth(client, topic)
    with_headers = load(spark, broker, topic=topic, includeHeaders="true").where("headers['trace'] = '3'")
    assert [bytes(row.value) for row in with_headers.collect()] == [b"3"]
    # A batch is what was there when it was first used.
    produce(client, topic, 10)
    assert frame.count() == 500
    assert load(spark, broker, topic=topic).where("offset >= 0").count() == 510


@pytest.mark.full
def test_a_users_schema_and_sql_and_an_empty_topic(
    spark: SparkSession, broker: BrokerProcess, client: RawClient
) -> None:
    topic = new_topic(client)
    spark.sql(f"create or replace temporary view t using tallystick options (url '{broker.url}', topic '{topic}')")
    assert spark.sql("select count(*) from t").first() == (0,)
    produce(client, topic, 20)
    few = (
        spark.read.format("tallystick").options(url=broker.url, topic=topic).schema("key string, offset bigint").load()
    )
    assert Counter(tuple(row) for row in few.collect()) == Counter((row[3], row[2]) for row in truth(client, topic))


def test_a_wrong_option_is_an_analysis_error_that_names_it(spark: SparkSession, broker: BrokerProcess) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        load(spark, broker, topic="t", startingOffset="earliest").collect()


@pytest.mark.spark
@pytest.mark.full
def test_a_stream_that_cannot_be_says_why_last(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    topic = new_topic(client)
    rows = spark.readStream.format("tallystick").option("url", broker.url).option("topic", topic)
    wrong = rows.option("endingOffsets", "latest").load().writeStream.format("noop")
    wrong = wrong.option("checkpointLocation", str(tmp_path / "wrong")).trigger(availableNow=True)
    with pytest.raises(Exception, match="a stream has no end; stop it") as told:
        run_to_end(wrong.start)
    assert "UnboundLocalError" not in str(told.value)
    elsewhere = str(tmp_path / "elsewhere")
    other = spark.readStream.format("rate").load().writeStream.format("noop")
    run_to_end(other.option("checkpointLocation", elsewhere).trigger(availableNow=True).start)
    ours = spark.readStream.format("tallystick").option("url", broker.url).option("topic", topic).load()
    query = ours.writeStream.format("noop").option("checkpointLocation", elsewhere).trigger(availableNow=True)
    with pytest.raises(Exception, match="the checkpoint holds the place of another source"):
        run_to_end(query.start)


def test_a_stream_reads_everything_once_over_restarts(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    first = new_topic(client, queues=2)
    produce(client, first, 100)
    query = Query(spark, broker, tmp_path, subscribePattern=f"{first}.*", startingOffsets="earliest")
    query.options["maxOffsetsPerTrigger"] = "40"
    assert query.run() == [40, 40, 20]
    put_topic(client, first, 3)
    produce(client, first, 50)
    produce(client, f"{first}-two", 10)
    query.forget_commit(2)  # the last batch is planned again; the sink knows that it has it
    assert query.run() == [0, 40, 20]
    assert query.rows() == truth(client, first, f"{first}-two")
    batches = query.batches()
    assert sum(query.run()) == 0
    assert query.batches() == batches, "where nothing is new, no batch is run"


@pytest.mark.full
def test_a_stream_from_latest_that_died_in_its_first_batch(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    topic = new_topic(client)
    produce(client, topic, 30)
    before = truth(client, topic)
    query = Query(spark, broker, tmp_path, topic=topic)
    assert query.run() == [0]
    query.forget_commit(0)
    produce(client, topic, 20)
    assert query.run() == [0, 20]
    assert query.rows() == truth(client, topic) - before


@pytest.mark.full
def test_a_first_batch_that_is_repeated_has_the_rows_that_it_had(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    """Before it is repeated the topic grows; then it is trimmed: what is gone by then is a loss, and no other start."""
    from pyspark.errors import StreamingQueryException

    topic = new_topic(client, queues=1)
    produce(client, topic, 30)
    query = Query(spark, broker, tmp_path, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert query.run() == [20, 10]
    query.back_to_batch_0()
    produce(client, topic, 30)
    assert query.run() == [20, 20, 20]
    assert query.rows() == truth(client, topic)
    query.back_to_batch_0()
    trim(client, topic, q0=5)
    with pytest.raises(StreamingQueryException, match=f"{topic}/0: offsets 0 to 4 are gone"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == [15, 20, 20]
    assert query.rows() == truth(client, topic)


def test_loss_fails_the_query_with_topic_queue_and_offsets(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = new_topic(client, queues=1)
    produce(client, topic, 30)
    query = Query(spark, broker, tmp_path, topic=topic, startingOffsets=json.dumps({topic: {"0": 5}}))
    trim(client, topic, q0=20)
    with pytest.raises(StreamingQueryException, match=f"{topic}/0: offsets 5 to 19 are gone"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert sum(query.run()) == 10
    assert query.rows() == truth(client, topic)


@pytest.mark.full
def test_a_topic_made_again_is_never_read_as_the_one_before(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException, StreamingQueryException

    topic = new_topic(client, queues=1)
    produce(client, topic, 30)
    frame = load(spark, broker, topic=topic)
    assert frame.count() == 30
    query = Query(spark, broker, tmp_path, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    running = query.start(processingTime="1 day")  # batch 0; the others are not due
    until(lambda: len(query.batches()) == 1 and bool(running.recentProgress))
    running.stop()
    first = query.rows()
    assert sum(first.values()) == 20
    assert client.request("DELETE", f"/v1/topics/{topic}").status == 204
    put_topic(client, topic, 1)
    produce(client, topic, 50)
    with pytest.raises(PySparkException, match=f"{topic}/0: offsets 0 to 29 are gone: the topic was deleted and made"):
        frame.collect()
    with pytest.raises(StreamingQueryException, match=f"{topic}: the topic was deleted and made again"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert sum(query.run()) == 50
    assert query.rows() == first + truth(client, topic)


@pytest.mark.full
@pytest.mark.fault
def test_a_running_query_outlives_its_broker_shows_its_lag_and_stops_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running_broker() as broker, RawClient(broker.url) as client:
        topic = new_topic(client)
        produce(client, topic, 300)
        running = Query(spark, broker, tmp_path, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
        query = running.start()
        until(lambda: any(one["numInputRows"] for one in query.recentProgress))
        broker.kill()
        broker.restart()
        client.close()
        produce(client, topic, 200)
        until(lambda: sum(one["numInputRows"] for one in query.recentProgress) == 500)
        last = next(one for one in reversed(query.recentProgress) if one["numInputRows"])
        latest, end = (json.loads(last["sources"][0][name]) for name in ("latestOffset", "endOffset"))
        assert latest[topic] == end[topic]
        before = time.monotonic()
        query.stop()
        assert time.monotonic() - before < 30
        assert running.rows() == truth(client, topic)


def until(done: Any) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, "waited for 60 s"
        time.sleep(0.1)
