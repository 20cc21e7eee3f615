"""A topic deleted and made again under the source: no row of the new one is ever read as one of the old."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from source_support import (
    Row,
    batch,
    big_topic,
    new_topic,
    playing,
    produce,
    put_topic,
    read_all,
    rows,
    spans,
    trim,
    truth,
)

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.errors import DataLoss
from tallystick.spark.jobs.reconcile import brokers, job
from tallystick.spark.jobs.reconcile.rules import BEGINNING

both = pytest.mark.parametrize("fail", ["true", "false"])


@pytest.fixture
def play(broker: BrokerProcess) -> Iterator[Any]:
    with playing(broker) as start:
        yield start


def delete(client: RawClient, topic: str) -> None:
    assert client.request("DELETE", f"/v1/topics/{topic}").status == 204


def make_again(client: RawClient, topic: str, messages: int, queues: int = 1) -> Counter[Row]:
    """The topic anew, with more messages than the deleted one had: the numbers alone would not tell."""
    delete(client, topic)
    put_topic(client, topic, queues)
    produce(client, topic, messages)
    return truth(client, topic)


@contextlib.contextmanager
def lost(fail: str, caplog: pytest.LogCaptureFixture, told: str) -> Iterator[None]:
    """What is lost fails the reader, or is told in the log."""
    if fail == "true":
        with pytest.raises(DataLoss, match=re.escape(told)):
            yield
        return
    with caplog.at_level(logging.WARNING, "tallystick.spark"):
        yield
    assert any(told in line for line in caplog.messages), caplog.messages


# --- batches -------------------------------------------------------------------------------------------------------


@both
def test_the_second_use_of_a_batch(
    broker: BrokerProcess, client: RawClient, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    reader = batch(broker, topic=topic, failOnDataLoss=fail)
    parts = reader.partitions()
    assert sum(len(one) for part in parts for one in reader.read(part)) == 10
    make_again(client, topic, 25)
    with lost(fail, caplog, f"{topic}/0: offsets 0 to 9 are gone: the topic was deleted and made again"):
        assert [one for part in parts for one in reader.read(part)] == []


@both
def test_a_task_in_the_middle_of_its_range(
    broker: BrokerProcess, client: RawClient, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = big_topic(client)
    before = truth(client, topic)
    reader = batch(broker, topic=topic, failOnDataLoss=fail)
    (part,) = reader.partitions()
    reading = reader.read(part)
    found = [next(reading)]
    make_again(client, topic, 7_000)
    # A task reads ahead: it may look while the topic is deleted and not made again yet.
    with lost(fail, caplog, "the topic was deleted"):
        found += reading
    assert not rows(found) - before
    assert sum(map(len, found)) < 6_000


@both
def test_an_offset_of_the_deleted_topic_as_a_start(
    broker: BrokerProcess, client: RawClient, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    new = make_again(client, topic, 25)
    old = batch(broker, topic=topic, startingOffsets=json.dumps({topic: {"0": 4}}), failOnDataLoss=fail)
    told = (
        f"{topic}/0: offsets 4 to 9 are gone (6 messages); the broker keeps offsets from 10 on (the topic was deleted"
    )
    with lost(fail, caplog, told):
        assert read_all(old) == new


def test_every_other_start_is_one_of_the_new_topic(broker: BrokerProcess, client: RawClient) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    new = make_again(client, topic, 25)
    reader = batch(broker, topic=topic)
    assert spans(reader.partitions()) == [(topic, 0, 10, 35)]
    for start in (
        {},
        {"startingOffsets": json.dumps({topic: {"0": -2}})},
        {"startingOffsets": json.dumps({topic: {"0": 10}})},
        {"startingTimestamp": "0"},
        {"startingOffsetsByTimestamp": json.dumps({topic: {"0": 1}})},
    ):
        assert read_all(batch(broker, topic=topic, **start)) == new


# --- streams -------------------------------------------------------------------------------------------------------


@both
def test_a_stream_that_had_not_read_everything(
    client: RawClient, play: Any, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    query = play(topic=topic, startingOffsets="earliest", failOnDataLoss=fail, maxOffsetsPerTrigger="9")
    assert sum(query.step().values()) == 9
    new = make_again(client, topic, 9)
    with lost(fail, caplog, f"{topic}: the topic was deleted and made again"):
        assert query.step() == new
    if fail == "false":
        assert query.step() == {}


@pytest.mark.parametrize("queues", [1, 3])
def test_a_stream_that_had_read_everything_goes_on(client: RawClient, play: Any, queues: int) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    query = play(topic=topic, startingOffsets="earliest")
    assert sum(query.step().values()) == 10
    new = make_again(client, topic, 25, queues)
    assert query.step() == new
    assert query.step() == {}


@both
def test_a_batch_of_a_stream_between_its_plan_and_its_reading(
    client: RawClient, play: Any, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    query = play(topic=topic, startingOffsets="earliest", failOnDataLoss=fail)
    _, parts = query.plan()
    make_again(client, topic, 25)
    with lost(fail, caplog, f"{topic}/0: offsets 0 to 9 are gone: the topic was deleted and made again"):
        assert query.read(parts) == {}


@both
def test_a_run_of_all_that_is_available_now(
    broker: BrokerProcess, client: RawClient, play: Any, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    options = {"topic": topic, "startingOffsets": "earliest", "failOnDataLoss": fail, "maxOffsetsPerTrigger": "4"}
    query = play(**options)
    query.reader.prepareForTriggerAvailableNow()
    assert sum(query.step().values()) == 4
    new = make_again(client, topic, 25)
    with lost(fail, caplog, f"{topic}/0: offsets 4 to 7 are gone: the topic was deleted and made again"):
        assert query.step() == {}
    if fail == "false":
        assert query.step() == {}, "the rest of what was available"
        with contextlib.closing(query.replayed(broker, **{**options, "maxOffsetsPerTrigger": "100"})) as later:
            assert later.step() == new
            assert later.step() == {}


def test_a_queue_that_an_earlier_topic_had_is_read_from_where_it_begins(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=4)
    produce(client, topic, 40)
    delete(client, topic)
    put_topic(client, topic, 1)
    query = play(topic=topic, startingOffsets="earliest")
    query.step()
    put_topic(client, topic, 4)
    produce(client, topic, 30)
    assert query.step() == truth(client, topic), "nothing is lost of what never was"


# --- another store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [0.0, 3600.0], ids=["looked at again", "not looked at again"])
@both
def test_another_store_behind_the_same_address(
    tmp_path: Path, fail: str, fresh: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.spark.brokers._FRESH_SECONDS", fresh)
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client, playing(broker) as play:
        topic = new_topic(client, queues=1)
        produce(client, topic, 10)
        reader = batch(broker, topic=topic, failOnDataLoss=fail)
        parts = reader.partitions()
        query = play(topic=topic, startingOffsets="earliest", failOnDataLoss=fail)
        assert sum(query.step().values()) == 10
        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start()
        client.close()  # its connection is gone; the next request makes another
        put_topic(client, topic, 1)
        produce(client, topic, 25)
        with lost(fail, caplog, f"{topic}/0: offsets 0 to 9 are gone: the topic was deleted and made again"):
            assert [one for part in parts for one in reader.read(part)] == []
        with lost(fail, caplog, f"{topic}: the topic was deleted and made again"):
            assert query.step() == truth(client, topic)


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_reconcile_does_not_take_a_topic_made_again_for_one_that_retention_has_shortened(tmp_path: Path) -> None:
    """What went with the deleted topic is missing and reported, as if the topic had not come back."""
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        topic = new_topic(client, queues=1)
        produce(client, topic, 10)
        make_again(client, topic, 5)
        assert job._log_from(brokers.pin(broker.url, ()), "") == BEGINNING
        trim(client, topic, q0=12)
        assert job._log_from(brokers.pin(broker.url, ()), "") > BEGINNING
