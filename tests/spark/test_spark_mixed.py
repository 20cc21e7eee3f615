"""Topics that hold messages in every form: archived, trimmed, read over archive and broker, and replayed alike."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archive_support import archived_rows, fill, rows_of, run, starts_of
from source_support import batch, read_all, trim, truth

from brokers import BrokerProcess, running_broker
from old_directory import make_old
from raw_client import RawClient
from stored_columns import ROWS, put_part, segments
from tallystick.core.ops import CommitBatch, PartRef
from tallystick.spark.jobs.replay import ReplaySettings, run_replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "mixed"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """On a directory of format 1, with messages of then and of now, as messages and as columns, in turns."""
    make_old(tmp_path / "data", TOPIC, round(time.time() * 1000))
    with running_broker(tmp_path, data_dir=tmp_path / "data") as one, RawClient(one.url) as client:
        for version in (1, 2, 3):
            fill(client, TOPIC, 40, first=100 * version)
            name = f"part{version}"
            assert put_part(client, TOPIC, name).status == 201
            client.do(CommitBatch("app", version, f"g-{version}", [PartRef(name, ROWS)]))
        assert segments(one.data_dir)
        yield one


def values(messages: Any) -> Counter[bytes]:
    return Counter(one.value for one in messages)


@pytest.mark.full
def test_a_topic_in_every_form_is_archived_and_read_as_one(broker: BrokerProcess, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with RawClient(broker.url) as client:
        before = client.messages(TOPIC)
        everything = truth(client, TOPIC)
        done = run(broker.url, archive, TOPIC, rows_at_once=300, keep=True).topics[0]
        assert (done.rows, done.verified) == (len(before), len(before))
        assert archived_rows(archive, TOPIC) == rows_of(before)
        (end,) = client.topics()[0].ends
        for start in (100, end - ROWS - 10, end - 10):  # within an old body, at the border of columns, within columns
            trim(client, TOPIC, q0=start)
            assert starts_of(broker.url, TOPIC) == [start]
            assert read_all(batch(broker, topic=TOPIC, archive=str(archive))) == everything
        run(broker.url, archive, TOPIC)
        assert client.messages(TOPIC) == []
        assert read_all(batch(broker, topic=TOPIC, archive=str(archive))) == everything


@pytest.mark.full
@pytest.mark.spark
def test_a_topic_in_every_form_is_replayed(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with RawClient(broker.url) as client:
        before = client.messages(TOPIC)
        (end,) = client.topics()[0].ends
        run(broker.url, archive, TOPIC, keep=True)
        trim(client, TOPIC, q0=end - ROWS - 10)
        given = ReplaySettings(
            url=broker.url, topic=TOPIC, to="again", archive=str(archive), to_offsets={0: end}, step_offsets=250
        )
        for _ in range(2):
            run_replay(spark, given)
        assert values(client.messages("again")) == values(before)
