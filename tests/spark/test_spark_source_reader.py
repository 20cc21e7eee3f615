"""The source's readers as plain objects, without Spark's engine, against a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows
from source_support import (
    batch,
    ends,
    new_topic,
    playing,
    produce,
    put_topic,
    read_all,
    spans,
    stored,
    trim,
    truth,
)

from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core.errors import BrokerUnavailable, DataLoss, InvalidRequest, NotFound
from tallystick.spark.schema import topic_schema
from tallystick.spark.source.reader import BatchReader


@pytest.fixture
def play(broker: BrokerProcess) -> Iterator[Any]:
    with playing(broker) as start:
        yield start


# --- batch ---------------------------------------------------------------------------------------------------------


def test_a_batch_reads_everything_once(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client, queues=3)
    produce(client, topic, 3_000)
    assert read_all(batch(broker, topic=topic)) == truth(client, topic)


def test_headers_come_where_they_are_asked_for(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 4)
    reader = BatchReader({"url": broker.url, "topic": topic, "includeHeaders": "true"}, topic_schema(True))
    (part,) = reader.partitions()
    found = [row for one in reader.read(part) for row in one.to_pylist()]
    assert [row["headers"] for row in found] == [[("trace", "0")], None, None, [("trace", "3")]]


def test_several_topics_and_a_pattern(broker: BrokerProcess, client: RawClient) -> None:
    one, two, other = new_topic(client), new_topic(client), new_topic(client, name="bills")
    for topic in (one, two, other):
        produce(client, topic, 20)
    named = read_all(batch(broker, subscribe=f"{one}, {two}"))
    assert named == truth(client, one, two)
    assert read_all(batch(broker, subscribePattern=f"{one}|{two}")) == named
    # The whole name has to match, as in Kafka.
    assert read_all(batch(broker, subscribePattern=one[:-1])) == {}


def test_an_empty_topic_gives_an_empty_batch(broker: BrokerProcess, client: RawClient) -> None:
    reader = batch(broker, topic=new_topic(client))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_missing_topic_is_an_error_that_says_what_to_do(broker: BrokerProcess, play: Any) -> None:
    for plan in (batch(broker, subscribe="nowhere").partitions, play(subscribe="nowhere").step):
        with pytest.raises(NotFound, match=r"no topic 'nowhere' at http.*tallystick topics create nowhere"):
            plan()


def test_no_broker_is_an_error_after_the_retry_time() -> None:
    before = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="option 'url'"):
        BatchReader({"url": "http://127.0.0.1:9", "topic": "t", "retryTimeout": "300ms"}, topic_schema()).partitions()
    assert time.monotonic() - before < 60  # of the two minutes that it would take otherwise


def test_offsets_of_queues_bound_a_batch(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client)
    produce(client, topic, 100)
    end0, end1 = ends(client, topic)
    start = json.dumps({topic: {"0": 3, "1": -2}})
    end = json.dumps({topic: {"0": end0 - 1, "1": -1}})
    reader = batch(broker, topic=topic, startingOffsets=start, endingOffsets=end)
    assert spans(reader.partitions()) == [(topic, 0, 3, end0 - 1), (topic, 1, 0, end1)]
    wanted = [m for m in client.messages(topic) if m.queue == 1 or 3 <= m.offset < end0 - 1]
    assert read_all(reader) == stored(wanted)


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ({"0": 1}, "says nothing of queue 1"),
        ({"0": 1, "1": 0, "2": 0}, "has no queue 2"),
        ({"0": 99, "1": 0}, "/0: 99 is beyond the end"),
    ],
)
def test_offsets_that_do_not_fit_the_topic_are_refused(
    broker: BrokerProcess, client: RawClient, queues: dict[str, int], told: str
) -> None:
    topic = new_topic(client)
    produce(client, topic, 10)
    with pytest.raises(InvalidRequest, match=told):
        batch(broker, topic=topic, startingOffsets=json.dumps({topic: queues})).partitions()


def test_a_batch_that_ends_before_it_starts_is_refused(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    places = {"startingOffsets": json.dumps({topic: {"0": 5}}), "endingOffsets": json.dumps({topic: {"0": 4}})}
    with pytest.raises(InvalidRequest, match="the start, offset 5, lies behind the end, offset 4"):
        batch(broker, topic=topic, **places).partitions()


def test_times_bound_a_batch(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client)
    moments = []
    for _ in range(3):
        produce(client, topic, 10)
        time.sleep(0.02)
        moments.append(str(int(time.time() * 1000)))
        time.sleep(0.02)
    parts = [m for m in client.messages(topic) if int(moments[0]) <= m.stored_at < int(moments[1])]
    assert read_all(batch(broker, topic=topic, startingTimestamp=moments[0], endingTimestamp=moments[1])) == stored(
        parts
    )
    by_queue = json.dumps({topic: {"0": int(moments[0]), "1": 0}})
    parts = [m for m in client.messages(topic) if m.queue == 1 or m.stored_at >= int(moments[0])]
    assert read_all(batch(broker, topic=topic, startingOffsetsByTimestamp=by_queue)) == stored(parts)
    # Nothing is that late: empty, or an error, as the user likes.
    late = {"topic": topic, "startingTimestamp": moments[2]}
    assert read_all(batch(broker, **late)) == {}
    with pytest.raises(InvalidRequest, match="no message was stored at or after"):
        batch(broker, **late, startingOffsetsByTimestampStrategy="error").partitions()


def test_ranges_are_divided_for_more_tasks(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client)
    produce(client, topic, 200)
    many = batch(broker, topic=topic, minPartitions="7")
    assert len(many.partitions()) >= 7
    assert read_all(many) == truth(client, topic)
    small = batch(broker, topic=topic, maxRecordsPerPartition="30")
    assert max(end - start for _, _, start, end in spans(small.partitions())) <= 30
    assert read_all(small) == truth(client, topic)


# --- stream --------------------------------------------------------------------------------------------------------


def test_batch_0_from_latest_is_empty_and_fixes_the_start(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    produce(client, topic, 10)
    query = play(topic=topic)  # latest
    place = query.place
    assert query.step() == {}
    fixed = query.place
    produce(client, topic, 5)
    # Batch 0 is repeated after a crash, by a new process, although the topic has grown.
    again = play(topic=topic)
    assert again.reader.partitions(place, fixed) == []
    again.place = fixed
    found = again.step()
    assert sum(found.values()) == 5
    assert found <= truth(client, topic)


@pytest.mark.parametrize("start", ["earliest", "offsets", "time"])
def test_batch_0_holds_rows_and_is_the_same_when_it_is_repeated(client: RawClient, play: Any, start: str) -> None:
    """Another process repeats it, that has only what Spark keeps: where the batch ends."""
    topic = new_topic(client)
    produce(client, topic, 20)
    trim(client, topic, q0=2, q1=1)
    moment = min(one.stored_at for one in client.messages(topic))
    given = {
        "earliest": {"startingOffsets": "earliest"},
        "offsets": {"startingOffsets": json.dumps({topic: {"0": 3, "1": -2}})},
        "time": {"startingTimestamp": str(moment)},
    }[start]
    query = play(topic=topic, maxOffsetsPerTrigger="9", **given)
    pinned = query.place
    end, parts = query.plan()
    first = query.read(parts)
    assert sum(first.values()) == 9, "the limit counts for batch 0"
    produce(client, topic, 20)
    kept = json.loads(json.dumps(end))
    again = play(topic=topic, startingOffsets="latest")
    repeated = again.reader.partitions(pinned, kept)
    assert spans(repeated) == spans(parts)
    assert again.read(repeated) == first
    again.place = kept  # and from there on it is a stream like any other
    later = Counter(row for row in truth(client, topic) if start != "offsets" or row[1] == 1 or row[2] >= 3)
    assert first + again.step() == later


def test_messages_of_batch_0_that_were_trimmed_before_it_was_repeated(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 20)
    query = play(topic=topic, startingOffsets="earliest")
    pinned = query.place
    end, _ = query.plan()
    trim(client, topic, q0=5)
    with pytest.raises(DataLoss, match=f"{topic}/0: offsets 0 to 4 are gone"):
        play(topic=topic, startingOffsets="earliest").reader.partitions(pinned, end)
    loose = play(topic=topic, startingOffsets="earliest", failOnDataLoss="false")
    assert spans(loose.reader.partitions(pinned, end)) == [(topic, 0, 5, 20)]


def test_a_checkpoint_whose_batch_0_was_empty_is_read_on(client: RawClient, play: Any) -> None:
    """As it was written once: the end of batch 0 is the start, and carries no other."""
    topic = new_topic(client)
    produce(client, topic, 20)
    (view,) = [one for one in client.topics() if one.name == topic]
    old = {topic: {"0": 0, "1": 0}, "__created__": {topic: view.created_at}}
    query = play(topic=topic, startingOffsets="earliest")
    assert query.reader.partitions(query.place, old) == []
    query.place = old
    assert query.step() == truth(client, topic)


def test_where_nothing_came_after_batch_0_there_is_no_other_batch(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    produce(client, topic, 20)
    for now in (True, False):
        query = play(topic=topic, startingOffsets="earliest")
        if now:
            query.reader.prepareForTriggerAvailableNow()
        assert sum(query.step().values()) == 20
        end, _ = query.plan()
        assert json.dumps(end) == json.dumps(query.place), "Spark compares the text"


def test_offsets_of_a_querys_progress_are_a_start(broker: BrokerProcess, client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    produce(client, topic, 20)
    query = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    first = query.step()
    assert "__begin__" in query.place
    rest = read_all(batch(broker, topic=topic, startingOffsets=json.dumps(query.place)))
    assert first + rest == truth(client, topic)


def test_a_stream_reads_everything_once_within_its_limit(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=3)
    produce(client, topic, 200)
    query = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
    steps = [query.step() for _ in range(8)]
    assert [sum(step.values()) for step in steps] == [*[30] * 6, 20, 0]
    assert sum(steps, Counter()) == truth(client, topic)


def test_available_now_stops_at_what_was_there(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    produce(client, topic, 100)
    before = truth(client, topic)
    query = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    query.reader.prepareForTriggerAvailableNow()
    found = query.step()
    produce(client, topic, 10)
    put_topic(client, topic, 3)
    for _ in range(3):
        found += query.step()
    assert found == before
    end, _ = query.plan()
    assert end == query.place


def test_available_now_on_a_new_query_from_latest_waits_for_nothing(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    query = play(topic=topic)
    query.reader.prepareForTriggerAvailableNow()
    produce(client, topic, 10)
    assert query.step() == query.step() == {}


def test_an_idle_stream_waits_for_the_next_message_and_reports_its_lag(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    query = play(topic=topic, pollWait="1s")
    assert query.reader.reportLatestOffset() is None
    query.step()
    before = time.monotonic()
    end, _ = query.plan()
    assert time.monotonic() - before >= 0.99
    assert end == query.place
    produce(client, topic, 5)
    assert sum(query.step().values()) == 5
    produce(client, topic, 7)
    query.plan(ReadMaxRows(1))
    assert query.reader.reportLatestOffset() == {topic: dict(zip("01", ends(client, topic), strict=True))}


def test_an_idle_stream_is_woken_by_a_message(client: RawClient, play: Any) -> None:
    topic = new_topic(client)
    query = play(topic=topic, pollWait="10s")
    query.step()
    before = time.monotonic()
    sending = threading.Timer(0.2, produce, (client, topic, 5))
    sending.start()
    assert sum(query.step().values()) > 0
    assert time.monotonic() - before < 10
    sending.join()


def test_too_few_messages_wait_for_more_or_for_the_delay(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 1)
    few = {"topic": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    patient, hasty = play(**few, maxTriggerDelay="1h"), play(**few, maxTriggerDelay="1ms")
    for query in (patient, hasty):
        assert sum(query.step().values()) == 1  # the first batch waits for nobody, as in Kafka
    produce(client, topic, 5)
    assert patient.step() == {}
    assert sum(hasty.step().values()) == 5
    produce(client, topic, 5)
    assert sum(patient.step().values()) == 10


def test_queues_and_topics_that_come_while_the_query_runs(client: RawClient, play: Any) -> None:
    first = new_topic(client, queues=1)
    produce(client, first, 10)
    query = play(subscribePattern=f"{first}.*", startingOffsets="latest")
    query.step()
    put_topic(client, first, 4)
    produce(client, first, 40)
    produce(client, f"{first}-more", 20)
    found = query.step()
    assert sum(found.values()) == 60
    assert found <= truth(client, first, f"{first}-more")
    assert query.step() == {}


def test_a_pattern_without_topics_waits_for_some(client: RawClient, play: Any) -> None:
    query = play(subscribePattern="later-[0-9]+")
    assert query.step() == query.step() == {}
    produce(client, "later-1", 5)
    assert query.step() == truth(client, "later-1")


def test_a_repeated_batch_reads_the_same_rows_whatever_came_since(
    broker: BrokerProcess, client: RawClient, play: Any
) -> None:
    topic = new_topic(client)
    produce(client, topic, 50)
    query = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    query.step()
    end, parts = query.plan()
    found = query.read(parts)
    produce(client, topic, 50)
    again = query.replayed(broker, topic=topic, minPartitions="6")
    parts = again.reader.partitions(again.place, json.loads(json.dumps(end)))
    assert len(parts) >= 6
    assert again.read(parts) == found
    again.close()
