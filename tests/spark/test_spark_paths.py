"""`load("topic")`, `save("topic")` and `start("topic")`: the argument is the topic, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from sink_support import VALUES, content
from source_support import new_topic, produce

from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core.errors import InvalidRequest
from tallystick.core.ids import new_gid
from tallystick.spark.sink.columns import columns_of
from tallystick.spark.sink.options import parse
from tallystick.spark.source.settings import parse_settings
from tallystick.spark.tables import parse_settings as parse_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

URL = {"url": "http://127.0.0.1:7440"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "topics"),
    [
        ({"path": "a"}, ("a",)),
        ({"path": "a, b"}, ("a", "b")),
        ({"paths": '["a","b"]'}, ("a", "b")),
        ({"path": "a", "topic": "a"}, ("a",)),
        ({"path": "b,a", "subscribe": "a,b"}, ("a", "b")),
        ({"path": "", "topic": "a"}, ("a",)),
    ],
)
def test_the_source_takes_a_path_for_topics(options: dict[str, str], topics: tuple[str, ...], streaming: bool) -> None:
    assert parse_settings({**URL, **options}, streaming).topics == topics


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "b", "subscribe": "a"}, "names topic 'b', but option 'subscribe' is 'a'"),
        ({"path": "a", "subscribe": "a,b"}, "names topic 'a', but option 'subscribe' is 'a,b'"),
        ({"path": "b", "topic": "a"}, "names topic 'b', but option 'topic' is 'a'"),
        ({"paths": '["a","b"]', "topic": "a"}, "names topic 'a', 'b', but option 'topic' is 'a'"),
        ({"path": "a", "subscribePattern": "a.*"}, "names topic 'a', but option 'subscribePattern' is 'a.*'"),
        ({"path": "/data/orders"}, "path '/data/orders' is not a valid name"),
        ({"paths": "a"}, "option 'paths': must be a JSON list"),
    ],
)
def test_the_source_refuses_a_path_that_contradicts_an_option(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_settings({**URL, **options}, streaming=False)
    assert told in refused.value.detail


def test_a_table_is_read_without_a_path() -> None:
    with pytest.raises(InvalidRequest, match="names topic 'orders', but option 'table' is 'op'"):
        parse_table({**URL, "table": "op", "path": "orders"})


def test_the_sink_takes_a_path_for_its_topic() -> None:
    for streaming in (False, True):
        options = parse({**URL, "path": "orders"}, streaming)
        assert columns_of(VALUES, options).topic == "orders"
        assert parse({**URL, "path": "orders", "topic": "orders"}, streaming).topic == "orders"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"path": "b", "topic": "a"}, "names topic 'b', but option 'topic' is 'a'"),
        ({"path": "a,b"}, "a write has one topic (got a, b)"),
        ({"path": "s3://bucket/orders"}, "is not a valid name"),
    ],
)
def test_the_sink_refuses_a_path_that_is_not_its_topic(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse({**URL, **options}, streaming=True)
    assert told in refused.value.detail


def test_spark_hands_the_arguments_of_load_save_and_start_over(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    one, other = new_topic(client), new_topic(client)
    produce(client, one, 5)
    produce(client, other, 3)
    saved, started = f"t-{new_gid()}", f"t-{new_gid()}"
    read = spark.read.format("tallystick").option("url", broker.url)
    assert read.load(one).count() == 5
    assert read.load([one, other]).count() == 8
    with pytest.raises(PySparkException, match=f"names topic '{other}', but option 'subscribe' is '{one}'"):
        read.option("subscribe", one).load(other).count()

    values = spark.read.format("tallystick").option("url", broker.url).load(one).select("value")
    write = values.write.format("tallystick").mode("append").option("url", broker.url)
    write.save(saved)
    assert content(broker.url, saved).total() == 5
    with pytest.raises(PySparkException, match=f"names topic '{other}', but option 'topic' is '{saved}'"):
        write.option("topic", saved).save(other)

    stream = spark.readStream.format("tallystick").option("url", broker.url).option("startingOffsets", "earliest")
    query = stream.load(one).select("value").writeStream.format("tallystick").option("url", broker.url)
    query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start(started).awaitTermination(120)
    assert content(broker.url, started) == content(broker.url, saved)
