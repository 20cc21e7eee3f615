"""The archive job without Spark's own processes: the same code, tasks run here; the broker and the kills are real."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_support import (
    archived_rows,
    batch_of,
    fill,
    rows_of,
    run,
    run_and_die,
    starts_of,
)

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.api.http.arrow import schema as endpoint_schema
from tallystick.core.errors import (
    ArchiveUnwritable,
    Conflict,
    DamagedArchive,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
)
from tallystick.core.ops import Ack
from tallystick.spark.archive.layout import SCHEMA, Archive
from tallystick.spark.archive.manifest import Manifest, publish
from tallystick.spark.jobs.archive import files as archive_files
from tallystick.spark.source.ranges import Range

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as one:
        yield one


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as one:
        yield one


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = request.node.originalname.removeprefix("test_")[:60] + f".{os.urandom(3).hex()}"
    client.json("PUT", f"/v1/topics/{name}", {"queues": 3})
    return name


def test_the_archive_holds_every_message_once_and_the_broker_none(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 1_000)
    before = rows_of(client.messages(topic))
    summary = run(broker.url, tmp_path, topic)
    assert archived_rows(tmp_path, topic) == before
    assert client.messages(topic) == []
    (done,) = summary.topics
    assert (done.rows, done.verified, done.files, done.manifests) == (1_000, 1_000, 3, [1])
    assert done.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    assert [done.trimmed_to[queue] for queue in range(3)] == starts_of(broker.url, topic)


def test_a_run_continues_where_the_last_one_ended(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 200)
    before = client.messages(topic)
    run(broker.url, tmp_path, topic)
    assert run(broker.url, tmp_path, topic).topics[0].rows == 0
    fill(client, topic, 100, first=200)
    before += client.messages(topic)
    # In steps of a few messages each, as a large backlog is.
    done = run(broker.url, tmp_path, topic, rows_at_once=60, file_rows=7).topics[0]
    assert done.rows == 100
    assert len(done.manifests) > 1
    assert archived_rows(tmp_path, topic) == rows_of(before)


def test_with_keep_the_broker_keeps_its_messages_until_a_later_run_trims_them(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    before = rows_of(client.messages(topic))
    run(broker.url, tmp_path, topic, keep=True)
    assert rows_of(client.messages(topic)) == before == archived_rows(tmp_path, topic)
    done = run(broker.url, tmp_path, topic).topics[0]
    assert (done.rows, done.verified) == (0, 100)  # read back once more before they are dropped
    assert client.messages(topic) == []


def test_a_dry_run_changes_nothing(broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path) -> None:
    fill(client, topic, 50)
    assert run(broker.url, tmp_path / "new", topic, dry_run=True, rows_at_once=10).topics[0].rows == 50
    assert not (tmp_path / "new").exists()
    assert len(client.messages(topic)) == 50


def test_offsets_say_how_far_to_archive(broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path) -> None:
    fill(client, topic, 100)
    given: dict[str, Any] = {"older_than_ms": None, "to_offsets": {topic: {0: 10, 2: 5}}}
    run(broker.url, tmp_path, topic, **given)
    assert Archive(str(tmp_path)).covers(topic) == {0: (0, 10), 2: (0, 5)}
    assert starts_of(broker.url, topic) == [10, 0, 5]
    with pytest.raises(InvalidRequest, match=r"queue 1: it ends at"):
        run(broker.url, tmp_path, topic, older_than_ms=None, to_offsets={topic: {1: 10_000}})


def test_only_what_is_old_enough_is_archived(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 50)
    assert run(broker.url, tmp_path, topic, older_than_ms=3_600_000).topics[0].rows == 0
    assert not list(tmp_path.rglob("*.json"))


def test_topics_are_found_by_a_pattern_and_missing_ones_are_named(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 20)
    pattern = topic.replace(".", r"\.")
    assert [one.topic for one in run(broker.url, tmp_path, "", topics=(), pattern=pattern).topics] == [topic]
    with pytest.raises(NotFound, match="no-such-topic"):
        run(broker.url, tmp_path, "no-such-topic")
    with pytest.raises(InvalidRequest, match="the offsets name the topics"):
        run(broker.url, tmp_path, topic, older_than_ms=None, to_offsets={"another": {0: 1}})
    with pytest.raises(InvalidRequest, match="older than a time, or to offsets"):
        run(broker.url, tmp_path, topic, older_than_ms=None)
    with pytest.raises(InvalidRequest, match="names, or a pattern"):
        run(broker.url, tmp_path, topic, pattern=".*")


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("step", ["verifying", "written", "verified", "published", "trimmed"])
def test_a_run_killed_at_a_step_and_run_again_archives_each_message_once(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path, step: str
) -> None:
    fill(client, topic, 300)
    before = rows_of(client.messages(topic))
    # Several steps, so that the kill comes with manifests of the same run before it.
    run_and_die(broker.url, tmp_path, topic, step, rows_at_once=120, file_rows=25)
    published = step in ("published", "trimmed")
    assert bool(list(tmp_path.rglob("*.json"))) == published
    assert (starts_of(broker.url, topic) != [0, 0, 0]) == (step == "trimmed")
    left = rows_of(client.messages(topic)) + (archived_rows(tmp_path, topic) if published else [])
    assert set(left) == set(before)  # whatever the step: each message is in the log, or counts in the archive
    run(broker.url, tmp_path, topic)
    assert archived_rows(tmp_path, topic) == before
    assert client.messages(topic) == []
    named = {Path(path) for path in Archive(str(tmp_path)).paths(topic)}
    assert set(tmp_path.rglob("*.parquet")) == named  # what the killed run left behind is gone


@pytest.mark.fault
def test_runs_killed_at_any_time_archive_each_message_once(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    """Kills that fall anywhere: within a file, a manifest or a trim, while messages keep coming."""
    before: dict[Any, Any] = {}
    for attempt in range(6):
        fill(client, topic, 150, first=150 * attempt)
        before |= {(one.queue, one.offset): one for one in client.messages(topic)}
        run_and_die(broker.url, tmp_path, topic, "", rows_at_once=30, file_rows=9, random_ms=250)
    run(broker.url, tmp_path, topic)
    assert archived_rows(tmp_path, topic) == rows_of(list(before.values()))
    assert client.messages(topic) == []


@pytest.mark.fault
@pytest.mark.parametrize("step", ["writing", "verifying", "published"])
def test_a_broker_that_is_killed_and_comes_back_does_not_stop_a_run(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path, step: str
) -> None:
    fill(client, topic, 200)
    before = rows_of(client.messages(topic))
    client.close()

    def meanwhile(text: str) -> None:
        if f": {step}" in text:
            broker.kill()
            threading.Timer(0.5, broker.start).start()

    run(broker.url, tmp_path, topic, report=meanwhile, patience_seconds=30.0)
    assert archived_rows(tmp_path, topic) == before
    assert client.messages(topic) == []


def test_files_that_no_manifest_names_are_no_part_of_the_archive(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    run_and_die(broker.url, tmp_path, topic, "verified")
    assert list(tmp_path.rglob("*.parquet"))
    with pytest.raises(NotFound, match="no archive"):
        Archive(str(tmp_path)).covers(topic)


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _another_message(path: Path) -> None:
    """A file that is whole in itself and has one value that nobody sent: only the log knows better."""
    table = pq.ParquetFile(path).read()
    values = table.column("value").to_pylist()
    values[len(values) // 2] += b"!"
    place = table.schema.get_field_index("value")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(values, pa.binary())), path)


def _one_message_less(path: Path) -> None:
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(0, table.num_rows - 1), path)


@pytest.mark.parametrize("damage", [_flip_a_byte, _another_message, _one_message_less, os.remove])
@pytest.mark.parametrize("when", ["written", "published"])
def test_a_damaged_file_is_found_before_the_broker_trims(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path, damage: Any, when: str
) -> None:
    """The negative control of verification: in the run that wrote the file, and in a later one that would trim."""
    fill(client, topic, 200)

    def spoil(text: str) -> None:
        if f": {when}" in text:
            damage(sorted(tmp_path.rglob("*.parquet"))[1])

    if when == "published":
        run(broker.url, tmp_path, topic, keep=True, report=spoil)
    with pytest.raises(DamagedArchive, match=r"\.parquet"):
        run(broker.url, tmp_path, topic, report=spoil)
    assert len(client.messages(topic)) == 200
    assert bool(list(tmp_path.rglob("*.json"))) == (when == "published")


# --- two at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["writing", "written", "verified"])
def test_of_two_runs_at_once_one_is_refused_and_changes_nothing(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path, step: str
) -> None:
    fill(client, topic, 200)
    before = rows_of(client.messages(topic))

    def meanwhile(text: str) -> None:
        if f": {step}" in text:
            run(broker.url, tmp_path, topic)

    with pytest.raises(Conflict, match="another run has archived"):
        run(broker.url, tmp_path, topic, report=meanwhile)
    assert archived_rows(tmp_path, topic) == before
    assert client.messages(topic) == []
    run(broker.url, tmp_path, topic)
    assert archived_rows(tmp_path, topic) == before


def test_a_manifest_is_published_once(tmp_path: Path) -> None:
    def manifest(run_name: str) -> Manifest:
        return Manifest(number=1, topic="t", store="s", created_at=1, run=run_name, written_at=1)

    assert publish(tmp_path, manifest("first"))
    assert not publish(tmp_path, manifest("second"))
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.json"]
    assert json.loads((tmp_path / "000000000001.json").read_bytes())["run"] == "first"


# --- gaps and identity ---------------------------------------------------------------------------------------------


def test_what_the_broker_dropped_before_it_was_archived_is_a_gap(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    # What was dropped before the first run is no gap: the archive begins with what there is.
    client.json("POST", f"/v1/topics/{topic}/trim", {"offsets": {"0": 5}})
    assert run(broker.url, tmp_path, topic).missing == 0
    ends = starts_of(broker.url, topic)
    fill(client, topic, 100, first=100)
    client.json("POST", f"/v1/topics/{topic}/trim", {"offsets": {"1": ends[1] + 7}})
    said: list[str] = []
    summary = run(broker.url, tmp_path, topic, report=said.append)
    assert summary.missing == 7
    assert any(f"queue 1: offsets {ends[1]} to {ends[1] + 7} are missing" in text for text in said)
    archive = Archive(str(tmp_path))
    assert archive.gaps(topic) == {1: [(ends[1], ends[1] + 7)]}
    assert archive.ranges(topic)[1][0] == (0, ends[1])
    assert archive.covers(topic)[1][0] == ends[1] + 7
    with pytest.raises(OffsetOutOfRange, match="not all archived"):
        list(archive.read(topic, 1, ends[1] - 1, ends[1] + 8))
    assert run(broker.url, tmp_path, topic).missing == 0  # told once; the manifest remembers it


def test_a_topic_made_anew_does_not_continue_the_archive_of_the_old_one(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 50)
    run(broker.url, tmp_path, topic)
    client.json("DELETE", f"/v1/topics/{topic}")
    fill(client, topic, 50)
    with pytest.raises(Conflict, match="deleted and made again, or is another broker's"):
        run(broker.url, tmp_path, topic)
    assert len(client.messages(topic)) == 50


def remake(client: RawClient, topic: str, count: int) -> None:
    client.json("DELETE", f"/v1/topics/{topic}")
    client.json("PUT", f"/v1/topics/{topic}", {"queues": 3})
    fill(client, topic, count)


@pytest.mark.parametrize("step", ["written", "published"])
def test_a_topic_made_anew_during_a_run_loses_nothing_to_the_trim(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path, step: str
) -> None:
    fill(client, topic, 100)
    before = rows_of(client.messages(topic))
    made: list[str] = []

    def report(text: str) -> None:
        if step in text and not made:
            made.append(text)
            remake(client, topic, 200)

    if step == "written":  # not verified yet, and now there is nothing to compare with
        with pytest.raises(OffsetOutOfRange, match="deleted and made again"):
            run(broker.url, tmp_path, topic, report=report)
        assert Archive(str(tmp_path)).manifests(topic) == []
    else:
        run(broker.url, tmp_path, topic, report=report)
        assert archived_rows(tmp_path, topic) == before
    assert made
    assert len(client.messages(topic)) == 200


def test_a_topic_made_anew_between_two_steps_of_a_run_ends_it(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 90)
    made: list[str] = []

    def report(text: str) -> None:
        if "published" in text and not made:
            made.append(text)
            remake(client, topic, 200)

    with pytest.raises(Conflict, match="deleted and made again during this run"):
        run(broker.url, tmp_path, topic, report=report, rows_at_once=30)
    assert len(client.messages(topic)) == 200
    assert len(Archive(str(tmp_path)).manifests(topic)) == 1


def test_a_topic_made_anew_has_an_archive_of_its_own(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    """Its offsets do not begin at 0, which is no gap; a queue that it gets later begins where an earlier one ended."""
    fill(client, topic, 90)
    client.json("DELETE", f"/v1/topics/{topic}")
    client.json("PUT", f"/v1/topics/{topic}", {"queues": 2})
    fill(client, topic, 60)
    before = client.messages(topic)
    assert run(broker.url, tmp_path, topic).missing == 0
    client.json("PUT", f"/v1/topics/{topic}", {"queues": 3})
    fill(client, topic, 60)
    before += client.messages(topic)
    assert run(broker.url, tmp_path, topic).missing == 0
    assert archived_rows(tmp_path, topic) == rows_of(before)
    archive = Archive(str(tmp_path))
    assert archive.gaps(topic) == {}
    assert all(start > 0 for start, _ in archive.covers(topic).values())


def test_what_a_consumer_group_has_not_settled_stays_in_the_broker(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 90)
    ends = next(view.ends for view in client.topics() if view.name == topic)
    client.json("PUT", "/v1/groups/reader/offsets", {"topic": topic, "offsets": {"0": 4, "1": ends[1], "2": ends[2]}})
    done = run(broker.url, tmp_path, topic).topics[0]
    assert (done.rows, done.held_by) == (90, {0: "reader"})
    assert starts_of(broker.url, topic) == [4, ends[1], ends[2]]
    # One that was received and is neither settled nor given back: it lies before the place of its group.
    client.json("PUT", "/v1/groups/reader/offsets", {"topic": topic, "offsets": {"0": ends[0]}})
    received = client.receive("worker", topic, max=90, invisible_ms=60_000)
    client.do(Ack("worker", [one.receipt for one in received if one.message.offset != 9]))
    assert run(broker.url, tmp_path, topic).topics[0].held_by == {0: "worker"}
    assert 4 <= starts_of(broker.url, topic)[0] <= 9
    run(broker.url, tmp_path, topic, past_consumers=True)
    assert starts_of(broker.url, topic) == ends


# --- reading -------------------------------------------------------------------------------------------------------


def test_the_archive_speaks_the_schema_of_the_brokers_endpoint() -> None:
    assert SCHEMA.equals(endpoint_schema())


def test_any_range_is_read_exactly_and_from_any_uri(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 300)
    run(broker.url, tmp_path, topic, file_rows=30)
    archive = Archive(tmp_path.as_uri())
    assert all(path.startswith(f"{tmp_path.as_uri()}/data/topic={topic}/day=") for path in archive.paths(topic))
    for queue, (start, end) in archive.covers(topic).items():
        for first, last in [(start, end), (start + 29, start + 31), (end - 1, end), (start + 5, start + 5)]:
            batches = list(archive.read(topic, queue, first, last))
            assert all(batch.schema.equals(SCHEMA) for batch in batches)
            assert [number for batch in batches for number in batch.column("offset").to_pylist()] == [
                *range(first, last)
            ]
        with pytest.raises(OffsetOutOfRange, match="not all archived"):
            list(archive.read(topic, queue, start, end + 1))


def test_only_the_row_groups_of_a_range_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "ROW_GROUP_ROWS", 10)
    batches = [batch_of(SCHEMA, [DAY_MS] * 10, first) for first in range(0, 50, 10)]
    (file,) = archive_files.write_range(tmp_path / "data", "run", Range("t", 0, 0, 50), batches)
    publish(
        tmp_path / "manifests" / "t",
        Manifest(number=1, topic="t", store="s", created_at=1, run="r", written_at=1, files=[file]),
    )
    path = tmp_path / "data" / file.path
    with pq.ParquetFile(path) as parquet:
        spoiled = parquet.metadata.row_group(1).column(4).data_page_offset + 30
    content = bytearray(path.read_bytes())
    content[spoiled] ^= 0xFF
    path.write_bytes(content)
    archive = Archive(str(tmp_path))
    assert sum(batch.num_rows for batch in archive.read("t", 0, 20, 50)) == 30
    with pytest.raises(DamagedArchive):
        list(archive.read("t", 0, 15, 20))


def test_files_hold_one_day_each_and_times_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "FILE_BYTES", 1)  # so that every batch of a day is a file of its own
    hour = 3_600_000
    times = [DAY_MS - 2 * hour, DAY_MS - 1, DAY_MS, DAY_MS + hour, DAY_MS + hour, 3 * DAY_MS]
    batches = [batch_of(SCHEMA, times), batch_of(SCHEMA, [3 * DAY_MS], len(times))]
    files = archive_files.write_range(tmp_path / "data", "run", Range("t", 0, 0, 7), batches)
    assert [(file.day, file.start, file.end) for file in files] == [
        ("1970-01-01", 0, 2),
        ("1970-01-02", 2, 5),
        ("1970-01-04", 5, 6),
        ("1970-01-04", 6, 7),
    ]
    assert all(file.path.startswith(f"topic=t/day={file.day}/000-") for file in files)
    publish(
        tmp_path / "manifests" / "t",
        Manifest(number=1, topic="t", store="s", created_at=1, run="r", written_at=1, files=files),
    )
    archive = Archive(str(tmp_path))
    found = [archive.offsets_at("t", time)[0] for time in (0, DAY_MS - 1, DAY_MS + 1, 2 * DAY_MS, 4 * DAY_MS)]
    assert found == [0, 1, 3, 5, 7]


def test_an_archive_that_was_moved_is_the_same_archive(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 50)
    run(broker.url, tmp_path / "here", topic)
    before = archived_rows(tmp_path / "here", topic)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert archived_rows(tmp_path / "there", topic) == before


def test_a_manifest_of_a_later_format_or_of_no_format_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "manifests" / "t"
    publish(directory, Manifest(number=1, topic="t", store="s", created_at=1, run="r", written_at=1, format=9))
    with pytest.raises(DamagedArchive, match="format 9"):
        Archive(str(tmp_path)).covers("t")
    (directory / "000000000001.json").write_text("{")
    with pytest.raises(DamagedArchive, match="no manifest"):
        Archive(str(tmp_path)).covers("t")


def test_a_directory_that_cannot_be_written_to_is_named(
    broker: BrokerProcess, client: RawClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 20)
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(ArchiveUnwritable, match="data"):
        run(broker.url, tmp_path, topic)
    assert len(client.messages(topic)) == 20


def test_an_archive_is_not_written_where_a_name_can_be_given_twice(broker: BrokerProcess) -> None:
    with pytest.raises(InvalidRequest, match="written to a directory"):
        run(broker.url, "mock:///archive", "t")
    with pytest.raises(InvalidRequest, match="no path or URI"):
        Archive("nowhere://archive")
