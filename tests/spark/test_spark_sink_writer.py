"""The writers as plain objects against a real broker: parts, the one commit, replays, and everything that may go wrong
between them."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from sink_support import (
    NOTHING,
    OTHER_QUERY,
    QUERY,
    Play,
    as_task,
    batch_writer,
    content,
    difference,
    expected,
    last,
    numbers,
    rows,
    schema,
    values,
)

from brokers import BrokerProcess, running_broker
from tallystick.core.errors import Conflict, InvalidRequest, PartUnavailable, TooLarge
from tallystick.core.ids import new_gid
from tallystick.link import Link
from tallystick.spark.sink import parts
from tallystick.spark.sink.writer import PreparedPart
from tallystick.store.kv.ledger import EARLIER


@pytest.fixture
def topic() -> str:
    return f"t-{new_gid()}"


@pytest.fixture
def play(broker: BrokerProcess, topic: str) -> Play:
    """A query of its own for every test: an application id is one query's."""
    return Play(broker.url, topic, txnAppId=new_gid())


def app_of(messages: list[PreparedPart]) -> str:
    return messages[0].app


# --- what becomes of rows --------------------------------------------------------------------------------------------


def test_rows_are_visible_after_the_commit_and_not_before(broker: BrokerProcess, topic: str, play: Play) -> None:
    messages = play.tasks(0, [numbers(0, 10), numbers(10, 25)])
    assert content(broker.url, topic) == {}
    play.commit(0, messages)
    assert content(broker.url, topic) == expected(0, 25)
    assert [message.count for message in messages] == [10, 15]
    assert last(broker.url, app_of(messages)) == 0


def test_every_column_comes_through(broker: BrokerProcess, topic: str) -> None:
    columns = schema(value="binary", key="string", topic="string", headers="headers", tag="string")
    writer = batch_writer(broker.url, columns)
    batch = pa.record_batch(
        {
            "value": [b"\x00\xff", b"2"],
            "key": ["k", None],
            "topic": [topic, f"{topic}-b"],
            "headers": pa.array([[("a", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string())),
            "tag": [None, "red"],
        }
    )
    writer.commit([writer.write(iter([batch]))])
    (first,), (second,) = rows(broker.url, topic), rows(broker.url, f"{topic}-b")
    assert (first["value"], first["key"], dict(first["headers"])) == (b"\x00\xff", "k", {"a": "1", "b": "2"})
    assert (second["value"], second["key"], second["tag"]) == (b"2", None, "red")
    assert first["gid"] == second["gid"]
    assert {first["sequence"], second["sequence"]} == {0, 1}


def test_large_strings_of_arrow_are_taken_too(broker: BrokerProcess, topic: str) -> None:
    writer = batch_writer(broker.url, topic=topic)
    batch = pa.record_batch({"value": pa.array(["1", "2"], pa.large_string())})
    writer.commit([writer.write(iter([batch]))])
    assert content(broker.url, topic) == {"1": 1, "2": 1}


def test_a_delay_holds_messages_back_until_its_time(broker: BrokerProcess, topic: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1)
    by_column = batch_writer(broker.url, schema(value="string", deliver_at="timestamp"), topic=topic)
    batch = pa.record_batch(
        {"value": ["now", "later"], "deliver_at": pa.array([None, at], pa.timestamp("us", tz="Asia/Tokyo"))}
    )
    by_column.commit([by_column.write(iter([batch]))])
    by_option = batch_writer(broker.url, topic=topic, delay="1s")
    by_option.commit([by_option.write(iter([values("later too")]))])
    assert content(broker.url, topic) == {"now": 1} or datetime.now(UTC) >= at
    deadline = time.monotonic() + 20
    while len(content(broker.url, topic)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert datetime.now(UTC) >= at
    assert content(broker.url, topic) == {"now": 1, "later": 1, "later too": 1}


def test_a_task_sends_in_many_small_requests_and_holds_few_of_them(broker: BrokerProcess, topic: str) -> None:
    """32 MiB in one task: what Arrow holds never grows beyond a few requests."""
    held: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(32):
            yield pa.record_batch({"value": [b"x" * 1024] * 1024})
            held.append(pa.total_allocated_bytes() - before)

    before = pa.total_allocated_bytes()
    writer = batch_writer(broker.url, schema(value="binary"), topic=topic)
    message = writer.write(batches())
    writer.commit([message])
    assert message.count == 32 * 1024
    assert max(held) < 3 * parts.REQUEST_BYTES
    assert len(rows(broker.url, topic)) == 32 * 1024


def test_requests_are_bounded_in_bytes_and_rows_and_numbered(broker: BrokerProcess, topic: str) -> None:
    sent: list[tuple[int, int]] = []

    class Watched(Link):
        def post_arrow(self, *path: str, body: memoryview, **query: object) -> object:
            with pa.ipc.open_stream(body) as stream:
                sent.append((len(body), sum(batch.num_rows for batch in stream)))
            assert query["index"] == len(sent) - 1
            return super().post_arrow(*path, body=body, **query)

    options = batch_writer(broker.url, topic=topic)
    with Watched(broker.url) as link, parts.Part(link, options._columns, None) as part:
        part.add(numbers(0, 3 * parts.REQUEST_ROWS))
        for _ in range(5):
            part.add(values("y" * 3_000_000))
    assert part.content.rows == sum(count for _, count in sent) == 3 * parts.REQUEST_ROWS + 5
    assert max(count for _, count in sent) <= parts.REQUEST_ROWS
    assert max(size for size, _ in sent) < 2 * parts.REQUEST_BYTES


def test_the_next_request_is_made_while_one_is_under_way(broker: BrokerProcess, topic: str) -> None:
    go_on, under_way = threading.Event(), threading.Event()

    class Held(Link):
        def post_arrow(self, *path: str, **query: Any) -> Any:
            under_way.set()
            assert go_on.wait(60)
            return super().post_arrow(*path, **query)

    columns = batch_writer(broker.url, topic=topic)._columns
    with Held(broker.url) as link, parts.Part(link, columns, None) as part:
        part.add(numbers(0, 10))
        part.flush()
        assert under_way.wait(60)
        part.add(numbers(10, 20))
        assert not go_on.is_set()
        go_on.set()
    assert part.content.rows == 20
    with Link(broker.url) as link:
        link.post("ledger", new_gid(), "0", parts=[{"part": part.id, "count": 20}])
    assert difference(broker.url, topic, expected(0, 20)) == NOTHING


def test_a_request_that_is_refused_fails_the_task(broker: BrokerProcess, topic: str) -> None:
    """Its error comes with the next request, or at the end."""

    class Refused(Link):
        def post_arrow(self, *path: str, **query: Any) -> Any:
            return super().post_arrow(*path, **{**query, "ttl_ms": -1})

    columns = batch_writer(broker.url, topic=topic)._columns

    def send(*batches: pa.RecordBatch) -> None:
        with Refused(broker.url) as link, parts.Part(link, columns, None) as part:
            for one in batches:
                part.add(one)

    for batches in ([numbers(0, 5)], [numbers(0, parts.REQUEST_ROWS)] * 4):
        with pytest.raises(InvalidRequest):
            send(*batches)


@pytest.mark.full
@pytest.mark.fault
def test_a_task_that_fails_does_not_wait_for_a_broker_that_is_silent(topic: str) -> None:
    """It would wait for two minutes for its answer. What was sent expires; nothing of it is ever visible."""
    with running_broker() as broker:

        def batches() -> Iterator[pa.RecordBatch]:
            yield numbers(0, parts.REQUEST_ROWS)
            os.kill(broker.pid, signal.SIGSTOP)
            yield numbers(0, 1)  # with which the others are sent
            raise RuntimeError("the input is broken")

        writer = batch_writer(broker.url, topic=topic)
        before = time.monotonic()
        try:
            with pytest.raises(RuntimeError, match="the input is broken"):
                writer.write(batches())
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert time.monotonic() - before < 60
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("tallystick-sink")]
        assert content(broker.url, topic) == {}


def test_a_broker_that_takes_only_small_requests_gets_small_ones(topic: str) -> None:
    with running_broker(max_request_bytes=65_536, max_message_bytes=20_000) as small:
        play = Play(small.url, topic)
        play.run(0, numbers(0, 20_000), values("z" * 20_000))
        assert sum(content(small.url, topic).values()) == 20_001


def test_a_value_above_the_limit_is_named_by_its_key(broker: BrokerProcess, topic: str) -> None:
    writer = batch_writer(broker.url, schema(key="string", value="binary"), topic=topic)
    batch = pa.record_batch({"key": ["small", "large"], "value": [b"1", b"x" * (4 * 1024 * 1024 + 1)]})
    with pytest.raises(TooLarge, match=r"with key 'large' has 4194305 bytes, the broker's limit is 4194304"):
        writer.write(iter([batch]))


HEADERS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ({"key": ["k" * 1_025]}, r"column 'key': a row with key 'k{80}'\.\.\. has 1025 characters, the limit is 1024"),
        ({"tag": ["t" * 129]}, r"column 'tag': a row with value b'bad' has 129 characters, the limit is 128"),
        (
            {"headers": pa.array([[(f"h{number}", "") for number in range(65)]], HEADERS)},
            r"column 'headers': a row with value b'bad' has 65 headers, the limit is 64",
        ),
        (
            {"headers": pa.array([[("n" * 129, "")]], HEADERS)},
            r"a row with value b'bad' has a header 'n{80}' with a name of 129 characters",
        ),
        ({"headers": pa.array([[("name", "x" * 8_193)]], HEADERS)}, r"has a header 'name' .* and a text of 8193"),
    ],
)
def test_a_row_over_a_limit_is_named(broker: BrokerProcess, topic: str, column: dict[str, Any], told: str) -> None:
    (name,) = column
    columns = schema(**{"value": "string", name: "headers" if name == "headers" else "string"})
    writer = batch_writer(broker.url, columns, topic=topic)
    bad = pa.record_batch({"value": ["bad"], **column})
    good = pa.record_batch([pa.array(["good"] * 3), pa.nulls(3, bad.schema.types[1])], schema=bad.schema)
    with pytest.raises((TooLarge, InvalidRequest), match=told):
        writer.write(iter([good, bad]))
    both = pa.Table.from_batches([good, bad]).combine_chunks().to_batches()[0]
    writer.commit([writer.write(iter([both.slice(0, 3)]))])  # what only shares its memory with a bad row is no worse
    assert content(broker.url, topic) == {"good": 3}


# --- batches without rows --------------------------------------------------------------------------------------------


def test_a_task_without_rows_has_no_part(broker: BrokerProcess, topic: str, play: Play) -> None:
    empty = play.task(0, numbers(0, 0))
    assert (empty.part, empty.count) == ("", 0)
    play.commit(0, [empty, play.task(0, numbers(0, 3))])
    assert content(broker.url, topic) == expected(0, 3)


def test_a_batch_without_rows_counts_as_committed(broker: BrokerProcess, topic: str, play: Play) -> None:
    """Spark runs one task with nothing to write where a batch has no partitions; its message names the query."""
    messages = play.run(0, numbers(0, 0))
    assert last(broker.url, app_of(messages)) == 0
    assert content(broker.url, topic) == {}


def test_the_query_id_is_the_application_id_if_none_is_given(broker: BrokerProcess, topic: str) -> None:
    query = "11111111-2222-4333-8444-555555555555"
    Play(broker.url, topic, query).run(3, numbers(0, 2))
    assert last(broker.url, query) == 3
    assert {row["gid"].split(":")[:3] == ["spark", query, "3"] for row in rows(broker.url, topic)} == {True}


# --- replays ---------------------------------------------------------------------------------------------------------


def test_a_replay_with_another_split_changes_nothing(broker: BrokerProcess, topic: str, play: Play) -> None:
    """The parts of the replay are sent before the first commit is known, as by a driver that was thought dead."""
    replayed = play.tasks(0, [numbers(0, 5), numbers(5, 10), numbers(10, 12), numbers(12, 20)])
    play.run(0, numbers(0, 10), numbers(10, 20))
    play.commit(0, replayed)
    assert difference(broker.url, topic, expected(0, 20)) == NOTHING
    with Link(broker.url) as link, pytest.raises(PartUnavailable):
        link.post("ledger", new_gid(), "0", parts=[{"part": replayed[0].part, "count": 5}])


def test_a_replay_that_finds_its_batch_committed_sends_nothing(broker: BrokerProcess, topic: str, play: Play) -> None:
    play.run(0, numbers(0, 20))
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in (0, 10):
            yield numbers(start, start + 10)
            taken.append(start)

    with as_task(batch=0):
        message = play.writer().write(batches())
    assert (message.part, message.skipped, taken) == ("", True, [0, 10])
    play.commit(0, [message, play.task(0)])
    play.run(1, numbers(20, 30))
    assert difference(broker.url, topic, expected(0, 30)) == NOTHING


def test_rows_that_were_skipped_are_never_counted_as_committed(broker: BrokerProcess, topic: str, play: Play) -> None:
    """Between the tasks and the commit somebody forgets the application: the batch is run again, not lost."""
    (first,) = play.run(0, numbers(0, 5))
    skipped = play.task(0, numbers(0, 5))
    with Link(broker.url) as link:
        link.delete("ledger", first.app)
    with pytest.raises(Conflict, match="nothing was sent"):
        play.commit(0, [skipped])
    assert last(broker.url, first.app) is None


def test_a_commit_that_is_asked_again_is_fine(broker: BrokerProcess, topic: str, play: Play) -> None:
    messages = play.run(0, numbers(0, 8))
    play.commit(0, messages)
    assert difference(broker.url, topic, expected(0, 8)) == NOTHING


def test_two_drivers_that_commit_one_batch_at_the_same_time(broker: BrokerProcess, topic: str, play: Play) -> None:
    for batch in range(5):
        sets = [play.tasks(batch, [numbers(10 * batch, 10 * batch + 10)]) for _ in range(4)]
        threads = [threading.Thread(target=play.commit, args=(batch, messages)) for messages in sets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert difference(broker.url, topic, expected(0, 50)) == NOTHING


def test_a_driver_that_comes_late_is_stopped_and_changes_nothing(broker: BrokerProcess, topic: str, play: Play) -> None:
    late = play.tasks(1, [numbers(100, 110)])
    for batch in range(3):
        play.run(batch, numbers(10 * batch, 10 * batch + 10))
    with pytest.raises(Conflict, match=r"batch 2 is committed already.*this driver stops"):
        play.commit(1, late)
    again = play.task(1, numbers(100, 110))
    assert again.skipped
    with pytest.raises(Conflict, match="Another driver runs this query"):
        play.commit(1, [again])
    assert difference(broker.url, topic, expected(0, 30)) == NOTHING


def test_a_checkpoint_several_batches_old_goes_on_where_its_rows_are_the_same(
    broker: BrokerProcess, topic: str, play: Play
) -> None:
    """The ledger remembers the digests of the last batches, so that each is known when other tasks run it again."""
    for batch in range(6):
        play.run(batch, numbers(10 * batch, 10 * batch + 10))
    for batch in range(2, 6):
        first = 10 * batch
        (one, two) = play.tasks(batch, [numbers(first, first + 3), numbers(first + 3, first + 10)])
        assert one.skipped
        assert two.skipped
        play.commit(batch, [one, two])
    play.run(6, numbers(60, 70))
    assert difference(broker.url, topic, expected(0, 70)) == NOTHING


def test_a_batch_out_of_turn_with_other_rows_is_refused_whatever_the_options_say(
    broker: BrokerProcess, topic: str
) -> None:
    play = Play(broker.url, topic, failOnDifferentReplay="false", txnAppId=new_gid())
    for batch in range(3):
        play.run(batch, numbers(10 * batch, 10 * batch + 10))
    with pytest.raises(Conflict, match=r"batch 0 .* is not sent: batch 2 .*10 rows then, 15 now") as refused:
        play.run(0, numbers(0, 15))
    assert "failOnDifferentReplay=false applies only to batch 2" in refused.value.detail
    assert "newer checkpoint. Or set a new txnAppId" in refused.value.detail
    assert difference(broker.url, topic, expected(0, 30)) == NOTHING


def test_a_batch_that_the_ledger_does_not_remember_is_refused_before_it_is_read(
    broker: BrokerProcess, topic: str, play: Play
) -> None:
    for batch in range(EARLIER + 2):
        play.run(batch, numbers(batch, batch + 1))
    with pytest.raises(Conflict, match="the ledger does not remember the rows of that number"):
        play.task(0, numbers(0, 1))
    assert play.task(1, numbers(1, 2)).skipped
    assert difference(broker.url, topic, expected(0, EARLIER + 2)) == NOTHING


def test_an_application_id_that_two_queries_share_loses_no_row_in_silence(broker: BrokerProcess, topic: str) -> None:
    app = new_gid()
    first = Play(broker.url, topic, QUERY, txnAppId=app)
    second = Play(broker.url, topic, OTHER_QUERY, txnAppId=app)
    late = second.tasks(0, [numbers(50, 60)])
    first.run(0, numbers(0, 10))
    with pytest.raises(Conflict, match=f"query {QUERY} has committed batch 0 under the same txnAppId"):
        second.commit(0, late)
    with pytest.raises(Conflict, match="a txnAppId of its own"):
        second.task(0, numbers(50, 60))
    assert difference(broker.url, topic, expected(0, 10)) == NOTHING


# --- parts that are gone, and abort ----------------------------------------------------------------------------------


def test_parts_that_expired_fail_the_commit_and_the_replay_mends_it(broker: BrokerProcess, topic: str) -> None:
    app = new_gid()
    hasty = Play(broker.url, topic, txnAppId=app, partTtl="1ms")
    messages = [hasty.task(0, numbers(0, 5)), Play(broker.url, topic, txnAppId=app).task(0, numbers(5, 9))]
    _wait_until_expired(broker, messages[0].part)
    with pytest.raises(PartUnavailable, match=r"nothing of it is visible.*option 'partTtl'.*sent anew"):
        hasty.commit(0, messages)
    assert content(broker.url, topic) == {}
    assert last(broker.url, app) is None
    Play(broker.url, topic, txnAppId=app).run(0, numbers(0, 9))
    assert difference(broker.url, topic, expected(0, 9)) == NOTHING


def test_parts_that_nobody_commits_expire_and_are_never_visible(topic: str) -> None:
    """What failed attempts, killed executors and killed drivers leave behind: Spark tells nobody of it."""
    with running_broker() as broker:
        orphans = Play(broker.url, topic, partTtl="2s")
        for attempt in range(3):
            orphans.task(0, numbers(10 * attempt, 10 * attempt + 10))
        assert _parts(broker) == 3
        deadline = time.monotonic() + 30
        while _parts(broker) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _parts(broker) == 0
        assert content(broker.url, topic) == {}


def _parts(broker: BrokerProcess) -> int:
    """The broker's own count of parts that nobody has claimed."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (found,) = [line for line in text.splitlines() if line.startswith("tallystick_parts ")]
    return int(float(found.split()[1]))


def _wait_until_expired(broker: BrokerProcess, part: str, seconds: float = 150) -> None:
    """A part is gone once the same request is new to the broker again."""
    stream = parts._stream([pa.record_batch({"topic": ["x"], "value": [b"probe"]})])
    deadline = time.monotonic() + seconds
    with Link(broker.url) as link:
        while time.monotonic() < deadline:
            try:
                link.post_arrow("parts", part, body=stream, index=0, ttl_ms=1)
                return
            except Conflict:
                time.sleep(0.05)
    raise AssertionError(f"part {part} did not expire")


def test_abort_drops_what_nobody_committed(broker: BrokerProcess, topic: str, play: Play) -> None:
    messages = play.tasks(0, [numbers(0, 5), numbers(5, 9)])
    play.abort(0, [None, *messages])
    with pytest.raises(PartUnavailable):
        play.commit(0, messages)
    assert content(broker.url, topic) == {}


def test_abort_after_a_commit_that_was_applied_changes_nothing(broker: BrokerProcess, topic: str, play: Play) -> None:
    messages = play.run(0, numbers(0, 9))
    play.abort(0, messages)
    assert difference(broker.url, topic, expected(0, 9)) == NOTHING


def test_abort_never_raises(play: Play, topic: str, broker: BrokerProcess) -> None:
    play.abort(0, [None, None])
    gone = Play("http://127.0.0.1:9", topic)
    gone.abort(0, [PreparedPart("app", QUERY, "part", 3), None])
    writer = batch_writer("http://127.0.0.1:9", topic=topic)
    writer.abort([PreparedPart("app", "", "part", 3)])


def test_a_commit_without_every_tasks_word_is_refused(broker: BrokerProcess, topic: str, play: Play) -> None:
    message = play.task(0, numbers(0, 5))
    for messages in ([message, None], []):
        with pytest.raises(Conflict, match="nothing was committed"):
            play.commit(0, messages)
    assert content(broker.url, topic) == {}


def test_an_unknown_topic_is_an_error_where_the_broker_makes_none(topic: str) -> None:
    with running_broker(auto_create_topics=False) as strict, pytest.raises(Exception, match=topic):
        Play(strict.url, topic).run(0, numbers(0, 1))


def test_a_bad_name_in_the_topic_column_is_refused(broker: BrokerProcess) -> None:
    writer = batch_writer(broker.url, schema(value="string", topic="string"))
    with pytest.raises(InvalidRequest, match="not a valid name"):
        writer.write(iter([pa.record_batch({"value": ["1"], "topic": ["no spaces"]})]))


# --- batch writes ----------------------------------------------------------------------------------------------------


def test_a_batch_write_without_an_id_is_written_each_time_and_leaves_no_trace(
    broker: BrokerProcess, topic: str
) -> None:
    for _ in range(2):
        writer = batch_writer(broker.url, topic=topic)
        writer.commit([writer.write(iter([numbers(0, 5)]))])
        assert last(broker.url, writer._app) is None
    assert content(broker.url, topic) == expected(0, 5) + expected(0, 5)


def test_a_batch_write_with_its_version_is_written_once(broker: BrokerProcess, topic: str) -> None:
    app = new_gid()
    for version, first in (("3", 0), ("3", 0), ("4", 5), ("3", 0)):
        writer = batch_writer(broker.url, topic=topic, txnAppId=app, txnVersion=version)
        writer.commit([writer.write(iter([numbers(first, first + 5)]))])
    assert difference(broker.url, topic, expected(0, 10)) == NOTHING


# --- the broker is killed --------------------------------------------------------------------------------------------

# Ends the broker, once, between making the commit durable and answering it.
_DIES_AFTER_COMMIT = """
import os, pathlib
from tallystick.api.http.route import Asked
original = Asked.respond
def respond(self, content, *more):
    mark = pathlib.Path("die-after-commit")
    if "app" in self._path and "version" in self._path and mark.exists():
        mark.unlink()
        os._exit(9)
    return original(self, content, *more)
Asked.respond = respond
"""


@pytest.mark.fault
def test_a_broker_that_dies_with_the_answer_to_the_commit(topic: str) -> None:
    """The commit is asked again, told that it is a duplicate, and that is success."""
    with running_broker(prelude=_DIES_AFTER_COMMIT) as broker:
        play = Play(broker.url, topic)
        messages = play.tasks(0, [numbers(0, 10), numbers(10, 20)])
        (broker.directory / "die-after-commit").touch()
        thread = threading.Thread(target=play.commit, args=(0, messages))
        thread.start()
        assert broker.wait() == 9
        broker.start()
        thread.join(60)
        assert not thread.is_alive()
        assert last(broker.url, QUERY) == 0
        assert difference(broker.url, topic, expected(0, 20)) == NOTHING


@pytest.mark.fault
def test_a_broker_that_is_killed_while_a_task_sends(topic: str) -> None:
    """Killed three times between and during the requests of one task, which goes on where it was."""
    with running_broker() as broker:
        play = Play(broker.url, topic)

        def batches() -> Iterator[pa.RecordBatch]:
            for start in range(0, 40_000, 500):
                yield numbers(start, start + 500)
                if start in (10_000, 20_000, 30_000):
                    broker.kill()
                    restarts.append(threading.Timer(0.3, broker.start))
                    restarts[-1].start()

        restarts: list[threading.Timer] = []
        with as_task(batch=0), pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "REQUEST_ROWS", 1_000)
            message = play.writer().write(batches())
        play.commit(0, [message])
        for restart in restarts:
            restart.join()
        assert difference(broker.url, topic, expected(0, 40_000)) == NOTHING
