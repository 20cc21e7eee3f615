"""Archive and replay on Spark: the round trip, exactly once, in order, and the source over archive and log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer
from archive_support import archived_rows, fill, rows_of, settings, starts_of
from stream_runs import run_to_end
from typer.testing import CliRunner

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.cli.options import Globals
from tallystick.cli.spark import archive as archive_command
from tallystick.cli.spark import replay as replay_command
from tallystick.core.errors import InvalidRequest, NotFound, OffsetOutOfRange
from tallystick.core.message import StoredMessage
from tallystick.spark.archive.layout import Archive
from tallystick.spark.jobs.archive import run_archive
from tallystick.spark.jobs.archive.plan import TopicIdentity
from tallystick.spark.jobs.replay import (
    MOST_HEADERS,
    ReplayFailed,
    ReplaySettings,
    ReplaySummary,
    _marked,
    application,
    run_replay,
    steps_of,
)
from tallystick.spark.tasks import SparkWorkers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
MARKS = ("replayed-id", "replayed-from")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as one:
        yield one


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as one:
        yield one


@pytest.fixture(scope="module")
def archived(
    broker: BrokerProcess, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[StoredMessage]]:
    """Topic `old`, archived by Spark and trimmed; and what it held."""
    path = tmp_path_factory.mktemp("archive")
    with RawClient(broker.url) as client:
        client.json("PUT", "/v1/topics/old", {"queues": 3})
        fill(client, "old", 900)
        before = client.messages("old")
        done = run_archive(spark, settings(broker.url, path, "old", file_rows=100)).topics[0]
        assert (done.rows, done.verified, client.messages("old")) == (900, 900, [])
        assert archived_rows(path, "old") == rows_of(before)
    return path, before


def replay(spark: SparkSession, broker: BrokerProcess, path: Path, **rest: Any) -> ReplaySummary:
    ends = {queue: end for queue, (_, end) in Archive(str(path)).covers("old").items()}
    given: dict[str, Any] = {"topic": "old", "to_offsets": ends, "archive": str(path), **rest}
    return run_replay(spark, ReplaySettings(url=broker.url, **given))


def contents(messages: Sequence[StoredMessage]) -> Counter[Any]:
    """What a replay keeps, with multiplicity."""
    return Counter((m.key, m.value, m.tag, tuple(_headers(m).items())) for m in messages)


def _headers(message: StoredMessage) -> dict[str, str]:
    return {name: value for name, value in sorted((message.headers or {}).items()) if name not in MARKS}


def by_key(messages: Sequence[StoredMessage]) -> dict[str, list[bytes]]:
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for message in sorted(messages, key=lambda one: (one.queue, one.offset)):
        if message.key is not None:
            found[message.key].append(message.value)
    return found


def test_a_replay_sends_each_message_once_in_order_and_tells_where_it_was(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, archived: tuple[Path, list[StoredMessage]]
) -> None:
    path, before = archived
    store = client.json("GET", "/v1/info").json()["store"]
    client.json("PUT", "/v1/topics/again", {"queues": 5})
    first = replay(spark, broker, path, to="again", step_offsets=150)
    after = client.messages("again")
    assert (first.messages, first.steps_before) == (900, 0)
    assert first.steps > 1
    assert contents(after) == contents(before)
    assert by_key(after) == by_key(before)
    marks = {tuple((one.headers or {})[name] for name in MARKS) for one in after}
    assert marks == {(one.id(store), f"old/{one.queue}/{one.offset}") for one in before}
    second = replay(spark, broker, path, to="again", step_offsets=150)
    assert (second.messages, second.steps_before) == (0, first.steps)
    assert client.messages("again") == after


@pytest.mark.full
def test_a_choice_of_keys_and_tags_goes_without_marks(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, archived: tuple[Path, list[StoredMessage]]
) -> None:
    path, before = archived
    replay(spark, broker, path, to="chosen", keys=("key-1", "key-2"), tags=("red",), marked=False)
    wanted = [one for one in before if one.key in ("key-1", "key-2") and one.tag == "red"]
    after = client.messages("chosen")
    assert contents(after) == contents(wanted)
    assert not any(name in (one.headers or {}) for one in after for name in MARKS)


@pytest.mark.full
def test_an_archive_is_replayed_by_time(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, archived: tuple[Path, list[StoredMessage]]
) -> None:
    path, before = archived
    middle = sorted(one.stored_at for one in before)[450]
    complete = Archive(str(path)).manifests("old")[0].complete_to
    assert complete is not None
    replay(spark, broker, path, to="late", to_offsets={}, since_ms=middle, until_ms=complete)
    assert contents(client.messages("late")) == contents([one for one in before if one.stored_at >= middle])
    with pytest.raises(InvalidRequest, match="up to where the archive of 'old' is complete"):
        replay(spark, broker, path, to_offsets={}, until_ms=complete + 1)


def test_a_range_of_a_live_topic_goes_into_the_same_topic_once(
    spark: SparkSession, broker: BrokerProcess, client: RawClient
) -> None:
    fill(client, "live", 120)
    before = client.messages("live")
    given = ReplaySettings(url=broker.url, topic="live", from_offsets={0: 3, 1: 0}, to_offsets={0: 20, 1: 5})
    for _ in range(2):
        run_replay(spark, given)
    ranges = {0: range(3, 20), 1: range(5)}
    copied = [one for one in before if one.offset in ranges.get(one.queue, ())]
    assert contents(client.messages("live")) == contents(before) + contents(copied)


@pytest.mark.full
def test_a_damaged_archive_is_not_replayed(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    fill(client, "harmed", 60)
    path = tmp_path / "archive"
    run_archive(spark, settings(broker.url, path, "harmed", file_rows=10, keep=True))
    covered = Archive(str(path)).covers("harmed")
    last = next(file for file in reversed(Archive(str(path)).files("harmed")) if file.queue == 0)
    (path / "data" / last.path).unlink()
    given = ReplaySettings(
        url=broker.url,
        topic="harmed",
        to="partly",
        archive=str(path),
        to_offsets={0: covered[0][1]},
        step_offsets=last.start,
    )
    with pytest.raises(ReplayFailed, match=last.path):
        run_replay(spark, given)
    assert len(client.messages("partly")) == last.start - covered[0][0]


def test_an_error_of_a_task_arrives_as_it_was_raised(spark: SparkSession) -> None:
    def work(number: int) -> int:
        if number == 2:
            raise InvalidRequest("no twos", field="number")
        return number * 10

    assert SparkWorkers(spark).each(work, [3, 1]) == [30, 10]
    with pytest.raises(InvalidRequest, match="no twos") as caught:
        SparkWorkers(spark).each(work, [1, 2])
    assert caught.value.field == "number"


_KILLED = """
import os, signal, sys
from tallystick.spark.jobs.replay import ReplaySettings, run_replay
from tallystick.spark.session import job_session
import msgspec
def report(text):
    if "committed: step 1" in text:
        os.kill(os.getpid(), signal.SIGKILL)
with job_session("killed", "local[2]", conf={"spark.driver.memory": "1g", "spark.log.level": "ERROR"}) as spark:
    run_replay(spark, msgspec.json.decode(sys.argv[1], type=ReplaySettings, strict=False), report)
"""


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.timeout(240)
def test_a_replay_killed_between_two_steps_and_run_again_sends_each_message_once(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, archived: tuple[Path, list[StoredMessage]]
) -> None:
    import msgspec

    path, before = archived
    ends = {queue: end for queue, (_, end) in Archive(str(path)).covers("old").items()}
    given = ReplaySettings(
        url=broker.url, topic="old", to="killed", archive=str(path), to_offsets=ends, step_offsets=100
    )
    # Credentials are in no text: the other process finds its own.
    told = {name: value for name, value in msgspec.structs.asdict(given).items() if name != "credentials"}
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")},
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr[-2000:])
    assert 0 < len(client.messages("killed")) < len(before)
    assert run_replay(spark, given).steps_before == 2
    after = client.messages("killed")
    assert contents(after) == contents(before)
    assert by_key(after) == by_key(before)


@pytest.mark.full
def test_the_source_reads_archive_and_log_as_one_topic(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    client.json("PUT", "/v1/topics/both", {"queues": 2})
    fill(client, "both", 300)
    before = client.messages("both")
    run_archive(spark, settings(broker.url, tmp_path / "archive", "both", file_rows=60))
    fill(client, "both", 100, first=300)
    before += client.messages("both")
    assert min(starts_of(broker.url, "both")) > 0
    options = {"url": broker.url, "subscribe": "both", "archive": str(tmp_path / "archive")}
    wanted = sorted((one.queue, one.offset, one.key, one.value) for one in before)
    batch = spark.read.format("tallystick").options(**options).load()
    assert sorted(tuple(row) for row in batch.select("queue", "offset", "key", "value").collect()) == wanted
    stream = spark.readStream.format("tallystick").options(**options).option("startingOffsets", "earliest")
    writing = (
        stream.option("maxOffsetsPerTrigger", "150")
        .load()
        .select("queue", "offset", "key", "value")
        .writeStream.format("memory")
        .queryName("both")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    run_to_end(writing.start)
    assert sorted(tuple(row) for row in spark.sql("select * from both").collect()) == wanted
    # And other readers of Parquet, by the list of files or, while nobody archives, by the directory.
    paths = Archive(str(tmp_path / "archive")).paths("both")
    for parquet in (spark.read.parquet(*paths), spark.read.parquet(str(tmp_path / "archive" / "data"))):
        assert {(row.topic, row.queue, row.offset) for row in parquet.collect()} == {
            ("both", one.queue, one.offset) for one in before[:300]
        }


# --- without Spark ----------------------------------------------------------------------------------------------------


def test_steps_are_cut_by_offset_alone() -> None:
    whole = dict(steps_of("t", {0: (5, 25), 1: (0, 3), 2: (7, 7)}, 10))
    assert {number: [(one.queue, one.start, one.end) for one in pieces] for number, pieces in whole.items()} == {
        0: [(0, 5, 10), (1, 0, 3)],
        1: [(0, 10, 20)],
        2: [(0, 20, 25)],
    }
    later = dict(steps_of("t", {0: (12, 25)}, 10))  # what is left keeps its numbers
    assert [piece.start for piece in later[1]] == [12]
    assert later[2] == whole[2]


def test_the_same_arguments_are_the_same_replay() -> None:
    identity = TopicIdentity("s", 1)
    one = ReplaySettings(url="http://a:1", topic="t", to_offsets={0: 1, 1: 2}, keys=("a", "b"))
    same = ReplaySettings(url="http://b:2", topic="t", to="t", to_offsets={1: 2, 0: 1}, keys=("b", "a"))
    assert application(one, identity) == application(same, identity)
    others = [
        ReplaySettings(url="http://a:1", topic="t", to_offsets={0: 1, 1: 3}, keys=("a", "b")),
        ReplaySettings(url="http://a:1", topic="t", to_offsets={0: 1, 1: 2}, keys=("a",)),
        ReplaySettings(url="http://a:1", topic="t", to_offsets={0: 1, 1: 2}, keys=("a", "b"), id="second"),
        ReplaySettings(url="http://a:1", topic="t", to_offsets={0: 1, 1: 2}, keys=("a", "b"), step_offsets=7),
    ]
    found = {application(other, identity) for other in others} | {application(one, TopicIdentity("s", 2))}
    assert len(found | {application(one, identity)}) == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "say where the replay ends"),
        ({"to_offsets": {0: 1}, "until_ms": 5}, "say where the replay ends"),
        ({"to_offsets": {0: 1}, "from_offsets": {0: 0}, "since_ms": 5}, "where the replay begins"),
        ({"to_offsets": {0: 1}}, "takes from_offsets and to_offsets"),
        ({"to_offsets": {0: 1}, "from_offsets": {0: 0}, "id": "x" * 61}, "at most 60"),
        ({"to_offsets": {0: 1}, "from_offsets": {0: 0}, "id": "a b"}, "not a valid application id"),
        ({"to_offsets": {0: 1}, "from_offsets": {0: 0}, "to": "a b"}, "not a valid name"),
    ],
)
def test_a_replay_without_a_closed_range_is_refused(broker: BrokerProcess, given: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        run_replay(None, ReplaySettings(url=broker.url, topic="t", **given))  # type: ignore[arg-type]


def test_what_is_neither_in_the_log_nor_in_the_archive_is_refused(
    broker: BrokerProcess, client: RawClient, archived: tuple[Path, list[StoredMessage]]
) -> None:
    fill(client, "short", 30)
    nowhere: Any = None
    for given, kind in [
        ({"topic": "short", "from_offsets": {0: 0}, "to_offsets": {0: 10_000}}, OffsetOutOfRange),
        ({"topic": "old", "from_offsets": {0: 0}, "to_offsets": {0: 1}}, OffsetOutOfRange),
        (
            {"topic": "old", "archive": str(archived[0]), "to_offsets": {0: 10_000}, "from_offsets": {0: 0}},
            OffsetOutOfRange,
        ),
        ({"topic": "old", "archive": str(archived[0]), "to_offsets": {0: 10_000}}, OffsetOutOfRange),
        ({"topic": "old", "archive": str(archived[0]), "to_offsets": {7: 1}}, OffsetOutOfRange),
        ({"topic": "short", "archive": str(archived[0]), "to_offsets": {0: 1}}, NotFound),
        ({"topic": "short", "archive": "/no/such/place", "to_offsets": {0: 1}}, NotFound),
        ({"topic": "nobody", "from_offsets": {0: 0}, "to_offsets": {0: 1}}, NotFound),
    ]:
        with pytest.raises(kind):
            run_replay(nowhere, ReplaySettings(url=broker.url, **given))


def test_marks_never_push_a_message_over_the_limit_of_headers() -> None:
    from archive_support import batch_of

    from tallystick.spark.archive.layout import SCHEMA

    full = [[(f"h{number}", "") for number in range(count)] for count in (MOST_HEADERS - 2, MOST_HEADERS - 1)]
    batch = batch_of(SCHEMA, [1, 2])
    place = SCHEMA.get_field_index("headers")
    batch = batch.set_column(place, SCHEMA.field(place), pa.array(full, SCHEMA.field(place).type))
    marked = _marked(batch, "s").column("headers").to_pylist()
    assert [len(one) for one in marked] == [MOST_HEADERS, MOST_HEADERS - 1]


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_commands_print_a_summary_and_fail_on_a_gap(
    spark: SparkSession, broker: BrokerProcess, client: RawClient, tmp_path: Path
) -> None:
    fill(client, "told", 60)
    jobs = typer.Typer()
    archive_command.add(jobs)
    replay_command.add(jobs)

    def said(*words: str, code: int = 0) -> str:
        found = CliRunner().invoke(jobs, [*words, "--url", broker.url], obj=Globals("", False))
        assert found.exit_code == code, found.output
        return found.output

    path = str(tmp_path / "archive")
    assert "60" in said("archive", "told", "--path", path, "--older-than", "0s", "--dry-run")
    assert "archived 60 messages" in said("archive", "told", "--path", path, "--older-than", "0s")
    ends = starts_of(broker.url, "told")
    fill(client, "told", 60)
    client.json("POST", "/v1/topics/told/trim", {"offsets": {"0": ends[0] + 2}})
    assert "2 messages were dropped" in said("archive", "told", "--path", path, "--older-than", "0s", code=1)
    given = f'{{"0": {ends[0]}}}'
    assert f"{ends[0]:,} messages sent to elsewhere" in said(
        "replay", "told", "--archive", path, "--to-offsets", given, "--to", "elsewhere"
    )
    assert len(client.messages("elsewhere")) == ends[0]
