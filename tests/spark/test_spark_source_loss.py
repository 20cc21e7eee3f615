"""Messages that are gone, messages in the archive, and brokers that break: the readers as plain objects."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from source_support import (
    Played,
    batch,
    big_topic,
    new_topic,
    playing,
    produce,
    put_topic,
    read_all,
    rows,
    spans,
    stored,
    trim,
    truth,
)

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.errors import DataLoss, Incomplete, InvalidRequest
from tallystick.spark.archive.manifest import Manifest, publish
from tallystick.spark.jobs.archive.files import write_range
from tallystick.spark.source.messages import read_messages
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.settings import parse_settings


@pytest.fixture
def play(broker: BrokerProcess) -> Iterator[Any]:
    with playing(broker) as start:
        yield start


# --- loss ----------------------------------------------------------------------------------------------------------


def test_retention_before_the_start_fails_a_batch_or_is_left_out(
    broker: BrokerProcess, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 100)
    trim(client, topic, q0=60)
    places = {"topic": topic, "startingOffsets": json.dumps({topic: {"0": 10}})}
    with pytest.raises(DataLoss, match=rf"{topic}/0: offsets 10 to 59 are gone \(50 messages\).* from 60 on"):
        batch(broker, **places).partitions()
    with caplog.at_level(logging.WARNING, "tallystick.spark"):
        assert read_all(batch(broker, **places, failOnDataLoss="false")) == truth(client, topic)
    assert f"{topic}/0: offsets 10 to 59 are gone" in caplog.text
    # Earliest is what is there.
    assert read_all(batch(broker, topic=topic)) == truth(client, topic)


def test_retention_that_overtakes_a_stream_fails_it_or_is_skipped(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 100)
    strict = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    loose = play(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false")
    for query in (strict, loose):
        assert sum(query.step().values()) == 10
    trim(client, topic, q0=95)
    with pytest.raises(DataLoss, match=f"{topic}/0: offsets 10 to 94 are gone"):
        strict.step()
    assert loose.step() == truth(client, topic)
    assert loose.step() == {}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_retention_that_overtakes_a_running_task(broker: BrokerProcess, client: RawClient, fail: str) -> None:
    topic = big_topic(client)
    reader = batch(broker, topic=topic, failOnDataLoss=fail)
    (part,) = reader.partitions()
    reading = reader.read(part)
    offsets = next(reading).column("offset").to_pylist()
    trim(client, topic, q0=5_900)
    if fail == "true":
        with pytest.raises(DataLoss, match=rf"{topic}/0: offsets [0-9]+ to 5899 are gone"):
            list(reading)
        return
    offsets += [offset for one in reading for offset in one.column("offset").to_pylist()]
    assert offsets[-100:] == list(range(5_900, 6_000))
    assert len(offsets) < 6_000
    assert offsets == sorted(set(offsets))


def test_a_deleted_topic_is_a_loss_and_with_leave_the_stream_goes_on_without_it(client: RawClient, play: Any) -> None:
    gone, stays = new_topic(client, queues=1), new_topic(client, queues=1)
    strict = play(subscribe=f"{gone},{stays}")
    loose = play(subscribe=f"{gone},{stays}", failOnDataLoss="false")
    strict.step(), loose.step()
    assert client.request("DELETE", f"/v1/topics/{gone}").status == 204
    produce(client, stays, 3)
    with pytest.raises(DataLoss, match=f"{gone}: the topic was deleted since"):
        strict.step()
    assert loose.step() == truth(client, stays)
    assert loose.step() == {}


def test_a_planned_batch_of_a_topic_deleted_meanwhile(client: RawClient, play: Any) -> None:
    topic = new_topic(client, queues=1)
    strict = play(topic=topic, startingOffsets="earliest")
    loose = play(topic=topic, startingOffsets="earliest", failOnDataLoss="false")
    produce(client, topic, 3)
    (_, parts), _ = strict.plan(), loose.plan()
    assert client.request("DELETE", f"/v1/topics/{topic}").status == 204
    with pytest.raises(DataLoss, match=f"{topic}: the topic was deleted since"):
        strict.read(parts)
    assert loose.read(parts) == {}


# --- the archive ---------------------------------------------------------------------------------------------------


def archived(
    broker: BrokerProcess, client: RawClient, topic: str, path: Path, spans: dict[int, tuple[int, int]]
) -> str:
    """Ranges of queues put into an archive, as the archive job does it in its tasks and at its end."""
    view = next(one for one in client.topics() if one.name == topic)
    settings = parse_settings({"url": broker.url, "topic": topic}, streaming=False)
    files = []
    for queue, (start, end) in spans.items():
        wanted = Range(topic, queue, start, end)
        files += write_range(path / "data", "run", wanted, read_messages(settings, wanted))
    manifest = Manifest(
        number=1, topic=topic, store="s", created_at=view.created_at, run="run", written_at=0, files=files
    )
    assert publish(path / "manifests" / topic, manifest)
    return str(path)


def test_archive_and_log_are_one_topic(broker: BrokerProcess, client: RawClient, play: Any, tmp_path: Path) -> None:
    topic = new_topic(client)
    produce(client, topic, 100)
    everything = truth(client, topic)
    place = archived(broker, client, topic, tmp_path, {0: (0, 30), 1: (0, 25)})
    trim(client, topic, q0=20, q1=25)  # in one queue they overlap, in the other they touch
    reader = batch(broker, topic=topic, archive=place)
    assert spans(part for part in reader.partitions() if part.archived) == [(topic, 0, 0, 20), (topic, 1, 0, 25)]
    assert read_all(reader) == everything
    query = play(topic=topic, startingOffsets="earliest", archive=place, maxOffsetsPerTrigger="30")
    steps = [query.step() for _ in range(4)]
    assert sum(steps, Counter()) == everything
    assert sum(read_all(batch(broker, topic=topic)).values()) == 100 - 45, "without the option only the log is read"


def test_a_gap_between_archive_and_log_is_a_loss(broker: BrokerProcess, client: RawClient, tmp_path: Path) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 100)
    everything = client.messages(topic)
    options = {"topic": topic, "archive": archived(broker, client, topic, tmp_path, {0: (10, 30)})}
    trim(client, topic, q0=40)
    with pytest.raises(DataLoss, match=f"{topic}/0: offsets 30 to 39 are gone"):
        batch(broker, **options).partitions()
    kept = [one for one in everything if 10 <= one.offset < 30 or one.offset >= 40]
    assert read_all(batch(broker, **options, failOnDataLoss="false")) == stored(kept)


def test_a_time_is_looked_up_in_the_archive_too(broker: BrokerProcess, client: RawClient, tmp_path: Path) -> None:
    topic = new_topic(client, queues=1)
    for _ in range(3):
        produce(client, topic, 10)
        time.sleep(0.01)
    everything = client.messages(topic)
    since = everything[10].stored_at
    place = archived(broker, client, topic, tmp_path, {0: (0, 20)})
    trim(client, topic, q0=20)
    found = read_all(batch(broker, topic=topic, archive=place, startingTimestamp=str(since)))
    assert found == stored(everything[10:])


def test_what_is_trimmed_under_a_running_task_is_read_from_the_archive(
    broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    topic = big_topic(client)
    everything = truth(client, topic)
    (tmp_path / "manifests").mkdir()  # an archive that has nothing yet
    reader = batch(broker, topic=topic, archive=str(tmp_path))
    (part,) = reader.partitions()
    reading = reader.read(part)
    found = [next(reading)]
    archived(broker, client, topic, tmp_path, {0: (0, 5_900)})
    trim(client, topic, q0=5_900)
    assert rows([*found, *reading]) == everything


def test_an_archive_of_an_earlier_topic_of_that_name_is_refused(
    broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    topic = new_topic(client, queues=1)
    produce(client, topic, 10)
    place = archived(broker, client, topic, tmp_path, {0: (0, 5)})
    assert client.request("DELETE", f"/v1/topics/{topic}").status == 204
    put_topic(client, topic, 1)
    with pytest.raises(InvalidRequest, match=r"option 'archive': .* holds another topic"):
        batch(broker, topic=topic, archive=place).partitions()


# --- broken brokers ------------------------------------------------------------------------------------------------


@pytest.mark.fault
def test_a_broker_killed_while_a_task_reads(tmp_path: Any) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        topic = big_topic(client)
        expected = truth(client, topic)
        reader = batch(broker, topic=topic, retryTimeout="30s")
        (part,) = reader.partitions()
        reading = reader.read(part)
        found = [next(reading)]
        broker.kill()
        broker.spawn()  # and it takes a while until it answers
        found += reading
        broker.wait_ready()
    assert rows(found) == expected


@pytest.mark.fault
def test_a_broker_restarted_under_an_idle_stream(tmp_path: Any) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.url) as client:
        topic = new_topic(client)
        query = Played(broker, topic=topic, retryTimeout="30s")
        query.step()
        broker.kill()
        broker.spawn()
        assert query.step() == {}
        client.close()
        produce(client, topic, 10)
        assert query.step() == truth(client, topic)
        query.close()


SEEDED = """
from tallystick.api.http import arrow_out
whole = arrow_out.batch_of_chunks
def less(*given):
    batch = whole(*given)
    return {}
arrow_out.batch_of_chunks = less
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("bug", "told"),
    [
        ("batch.slice(1)", r"asked for offsets 0 to 99, got 1 to 99 in 99 rows"),
        ("batch.slice(0, batch.num_rows - 1)", r"the broker gives nothing from 99 on"),
        ("batch.take([*range(50), *range(49, 100)]) if len(batch) == 100 else batch", r"got 0 to 99 in 101 rows"),
    ],
)
def test_a_broker_that_gives_less_or_more_than_was_asked_is_caught(tmp_path: Any, bug: str, told: str) -> None:
    with (
        running_broker(tmp_path, prelude=SEEDED.format(bug)) as broker,
        RawClient(broker.url) as client,
    ):
        topic = new_topic(client, queues=1)
        produce(client, topic, 100)
        with pytest.raises(Incomplete, match=told):
            read_all(batch(broker, topic=topic, retryTimeout="300ms"))
