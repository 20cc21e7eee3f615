"""The source's rules without a broker: options, places, shares, ranges, the form of offsets, columns."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tallystick.api.http.arrow import schema as broker_schema
from tallystick.core.errors import DataLoss, InvalidRequest
from tallystick.core.wire import TopicView
from tallystick.spark.format import TallystickSource
from tallystick.spark.schema import Shape, topic_schema
from tallystick.spark.source.marks import StreamMark, advance, fair_share, first_begin, first_end, read_mark
from tallystick.spark.source.ranges import Loss, Range, divided, kept
from tallystick.spark.source.settings import OPTIONS, parse_settings

URL = {"url": "http://127.0.0.1:7440"}
ONE = {**URL, "topic": "orders"}

# --- options -------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_kafka() -> None:
    stream, batch = parse_settings(ONE, streaming=True), parse_settings(ONE, streaming=False)
    assert (stream.start.kind, batch.start.kind, batch.end.kind) == ("latest", "earliest", "latest")
    assert stream.fail_on_loss
    assert stream.max_per_trigger is None
    assert stream.max_delay == 15 * 60


def test_options_are_read_in_any_case_and_sparks_own_are_let_through() -> None:
    given = {"URL": URL["url"], "subscribe": "a, b,a", "MAXOFFSETSPERTRIGGER": "5", "FailOnDataLoss": "FALSE"}
    own = {"path": "", "checkpointLocation": "y", "queryName": "q", "serialization.format": "1", "__columns": "[]"}
    found = parse_settings({**given, **own}, streaming=True)
    assert found.topics == ("a", "b")
    assert found.max_per_trigger == 5
    assert not found.fail_on_loss


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "a"}, "option 'url': is needed"),
        ({**URL}, "give one of topic, subscribe, subscribePattern, not none"),
        ({**ONE, "subscribe": "b"}, "not topic and subscribe"),
        ({**URL, "subscribe": "a,,b"}, "subscribe '' is not a valid name"),
        ({**URL, "subscribePattern": "a("}, "'subscribePattern': 'a(' is no regular expression"),
        ({"url": "http://a,ftp://b", "topic": "a"}, "'url': 'ftp://b' is no address"),
        ({"url": "kafka://a:9092", "topic": "a"}, "'url': 'kafka://a:9092' is no address such as http"),
        ({**ONE, "startingOffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({**ONE, "colour": "red"}, "option 'colour': the source has no such option. It takes: archive, "),
        ({**ONE, "colour": "red"}, "subscribePattern, table, tokenFile, topic, url"),
        ({**ONE, "kafka.bootstrap.servers": "h:1"}, "option 'url'"),
        ({**ONE, "startingOffsets": "middle"}, "'startingOffsets': 'middle' is not one of 'earliest', 'latest'"),
        ({**ONE, "startingOffsets": '{"orders": {"x": 1}}'}, "queue 'x'"),
        ({**ONE, "startingOffsets": '{"orders": [1]}'}, "is not of the form"),
        ({**ONE, "startingOffsets": '{"orders": {"0": -3}}'}, "the least number is -2"),
        ({**ONE, "startingOffsets": '{"other": {"0": 3}}'}, "names topic 'other', which is not read"),
        ({**ONE, "startingTimestamp": "yesterday"}, "'startingTimestamp': 'yesterday' is neither"),
        ({**ONE, "startingTimestamp": "2026-11-02T10:00:00"}, "a time with its zone"),
        ({**ONE, "maxOffsetsPerTrigger": "0"}, "not a whole number of at least 1"),
        ({**ONE, "minPartitions": "many"}, "'minPartitions': 'many' is not a whole number"),
        ({**ONE, "failOnDataLoss": "no"}, "neither 'true' nor 'false'"),
        ({**ONE, "retryTimeout": "soon"}, "'retryTimeout': 'soon' is not a duration"),
        ({**ONE, "pollWait": "1m"}, "'pollWait': '1m' is more than 10s"),
        ({**ONE, "startingOffsetsByTimestampStrategy": "guess"}, "is not one of 'latest', 'error'"),
    ],
)
def test_a_wrong_option_is_named_and_explained(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_settings(options, streaming=True)
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    text = {"endingOffsets": "latest", "endingTimestamp": "5", "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        parse_settings({**ONE, name: text[name]}, streaming=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"orders": {"0": -1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"orders": {"0": -2}}'),
    ],
)
def test_a_batch_that_could_only_be_empty_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match="nothing would be read"):
        parse_settings({**ONE, name: value}, streaming=False)


def test_a_time_counts_more_than_times_of_queues_and_those_more_than_offsets() -> None:
    offsets = {**ONE, "startingOffsets": "earliest"}
    times = {**offsets, "startingOffsetsByTimestamp": '{"orders": {"0": 7}}'}
    both = {**times, "startingTimestamp": "2026-11-02T10:00:00+01:00"}
    assert parse_settings(offsets, streaming=True).start.kind == "earliest"
    assert parse_settings(times, streaming=True).start.by_queue == {"orders": {0: 7}}
    assert parse_settings(both, streaming=True).start.time == 1_793_610_000_000


def test_offsets_of_a_querys_progress_can_be_given_back() -> None:
    written = json.dumps(StreamMark({"orders": {0: 7, 1: 9}}, {"orders": 123}).written())
    assert parse_settings({**ONE, "startingOffsets": written}, streaming=True).start.by_queue == {
        "orders": {0: 7, 1: 9}
    }


def test_a_table_is_no_stream() -> None:
    reader = TallystickSource({**URL, "table": "op"}).streamReader(StructType())
    with pytest.raises(InvalidRequest, match=r"read it with spark\.read"):
        reader.initialOffset()


def test_every_option_of_the_source_is_in_its_reference_page(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "reference" / "spark-source.md").read_text()
    assert [name for name in OPTIONS if f"`{name}`" not in page] == []


# --- shares and ranges ---------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 9), st.integers(-3, 1_000)), st.integers(1, 500), st.integers(0, 10_000))
def test_shares_never_exceed_the_limit_and_never_waste_it(waiting: dict[int, int], most: int, turn: int) -> None:
    taken = fair_share(waiting, most, turn)
    there = {queue: length for queue, length in waiting.items() if length > 0}
    assert sum(taken.values()) == min(most, sum(there.values()))
    assert all(0 < count <= there[queue] for queue, count in taken.items())
    if most >= len(there):
        assert taken.keys() == there.keys()


def test_a_short_queue_beside_a_long_one_is_read_at_once_and_long_ones_by_their_length() -> None:
    assert fair_share({"long": 1_000_000, "short": 1, "half": 500_000}, 301, 0) == {
        "long": 199,
        "short": 1,
        "half": 101,
    }


def test_with_fewer_messages_than_queues_each_queue_has_its_turn() -> None:
    waiting = dict.fromkeys("abc", 10)
    assert {next(iter(fair_share(waiting, 1, turn))) for turn in range(3)} == {"a", "b", "c"}


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 60),
)
def test_divided_ranges_hold_the_same_offsets_once(
    places: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    whole = [Range("t", queue, start, start + length) for queue, (start, length) in enumerate(places)]
    found = divided(whole, least, most)
    total = sum(map(len, whole))
    assert sorted((one.queue, at) for one in found for at in range(one.start, one.end)) == [
        (one.queue, at) for one in whole for at in range(one.start, one.end)
    ]
    assert all(0 < len(one) <= (most or total) for one in found)
    assert len(found) >= min(least or 0, total)
    if least is None and most is None:
        assert found == [one for one in whole if len(one)]


@given(*(st.integers(0, 30) for _ in range(5)))
def test_what_is_kept_and_what_is_gone_make_up_the_range(first: int, end: int, start: int, low: int, high: int) -> None:
    wanted = Range("t", 0, first, max(first, end))
    pieces, gaps = kept(wanted, start, (low, max(low, high)))
    there = [at for piece in pieces for at in range(piece.start, piece.end)]
    gone = [at for gap in gaps for at in range(*gap)]
    assert sorted(there + gone) == list(range(wanted.start, wanted.end))
    assert there == sorted(there)
    for piece in pieces:
        assert piece.archived == (piece.end <= start), "the broker's own is read from the broker"
    assert all(at < start and not low <= at < high for at in gone)


# --- offsets -------------------------------------------------------------------------------------------------------


def view(name: str, starts: list[int], ends: list[int], created: int = 1, begins: tuple[int, ...] = ()) -> TopicView:
    return TopicView(name, len(ends), 0, created, starts, ends, list(begins))


def test_offsets_are_written_in_one_way_only() -> None:
    one = StreamMark({"b": {10: 1, 2: 5}, "a": {0: 3}}, {"a": 1, "b": 2})
    other = StreamMark({"a": {0: 3}, "b": {2: 5, 10: 1}}, {"b": 2, "a": 1})
    text = '{"a": {"0": 3}, "b": {"2": 5, "10": 1}, "__created__": {"a": 1, "b": 2}}'
    assert json.dumps(one.written()) == json.dumps(other.written()) == text
    assert read_mark(json.loads(text)) == one


def test_the_end_of_batch_0_carries_its_begin_in_one_way_only() -> None:
    begin, end = StreamMark({"b": {1: 2, 0: 1}, "a": {0: 0}}, {"a": 1, "b": 2}), {"a": {0: 3}, "b": {0: 1, 1: 9}}
    written = first_end(begin, StreamMark(end, begin.created))
    text = (
        '{"a": {"0": 3}, "b": {"0": 1, "1": 9}, "__created__": {"a": 1, "b": 2}, '
        '"__begin__": {"a": {"0": 0}, "b": {"0": 1, "1": 2}}}'
    )
    assert json.dumps(written) == text
    assert first_begin(json.loads(text)) == begin
    assert read_mark(json.loads(text)) == StreamMark(end, begin.created)
    # Where it holds nothing, the end is the start.
    assert first_end(begin, begin) == begin.written()
    assert first_begin(begin.written()) is None


def test_a_queue_that_was_added_is_read_from_its_first_message() -> None:
    begin = StreamMark({"t": {0: 7}}, {"t": 1})
    found = advance(begin, {"t": view("t", [0, 0], [9, 4])}, None, Loss(True), archived=False)
    assert found.mark.queues == {"t": {0: 9, 1: 4}}
    assert begin.begin(view("t", [0, 0], [9, 4]), 1) == 0
    assert found.waiting == 6


def test_a_queue_that_does_not_begin_at_0_is_read_from_where_it_begins() -> None:
    """An earlier topic of that name had the queue, the one that is read got it just now."""
    begin = StreamMark({"t": {0: 7}}, {"t": 1})
    views = {"t": view("t", [5, 20], [9, 24], begins=(5, 20))}
    assert advance(begin, views, None, Loss(True), archived=True).waiting == 6
    assert begin.begin(views["t"], 1) == 20


@pytest.mark.parametrize("archived", [True, False])
def test_a_topic_that_goes_on_where_the_reader_is_has_lost_nothing(archived: bool) -> None:
    views = {"t": view("t", [9, 5], [12, 5], created=2, begins=(9, 5))}
    read = StreamMark({"t": {0: 9, 1: 5}}, {"t": 1})
    assert advance(read, views, None, Loss(True), archived).mark == StreamMark({"t": {0: 12, 1: 5}}, {"t": 2})
    for behind in ({0: 8, 1: 5}, {0: 9, 1: 4}, {0: 10, 1: 5}, {0: 9, 1: 5, 2: 1}):
        with pytest.raises(DataLoss, match="t: the topic was deleted and made again"):
            advance(StreamMark({"t": behind}, {"t": 1}), views, None, Loss(True), archived)
        found = advance(StreamMark({"t": behind}, {"t": 1}), views, None, Loss(False), archived)
        assert (found.mark.queues, found.waiting) == ({"t": {0: 12, 1: 5}}, 3)


def test_trimmed_messages_do_not_count_unless_there_is_an_archive() -> None:
    begin, views = StreamMark({"t": {0: 0}}, {"t": 1}), {"t": view("t", [100], [110])}
    assert advance(begin, views, 5, Loss(True), archived=False).mark.queues == {"t": {0: 105}}
    assert advance(begin, views, 5, Loss(True), archived=True).mark.queues == {"t": {0: 5}}


@pytest.mark.parametrize(
    ("views", "told"),
    [
        ({}, "t: the topic was deleted since"),
        ({"t": view("t", [0, 0], [9, 9], created=2)}, "t: the topic was deleted and made again"),
        ({"t": view("t", [0, 0], [9, 3])}, "t/1: offsets 3 to 4 are gone; the broker's queue ends at 3"),
        ({"t": view("t", [0], [9])}, "t/1: offsets 0 to 4 are gone"),
    ],
)
def test_a_topic_that_is_not_what_it_was_is_a_loss(views: dict[str, TopicView], told: str) -> None:
    begin = StreamMark({"t": {0: 9, 1: 5}}, {"t": 1})
    with pytest.raises(DataLoss) as loss:
        advance(begin, views, None, Loss(True), archived=False)
    assert told in str(loss.value)
    assert "failOnDataLoss" in str(loss.value)
    again = advance(begin, views, None, Loss(False), archived=False).mark
    assert advance(again, views, None, Loss(True), archived=False).mark == again, "once is enough"


# --- columns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [True, False])
def test_columns_are_those_of_the_broker_in_sparks_types(headers: bool) -> None:
    shape = Shape(topic_schema(headers))
    assert shape.arrow.equals(to_arrow_schema(topic_schema(headers), timezone="UTC"))
    assert [name for name in broker_schema().names if headers or name != "headers"] == shape.arrow.names


def rows_of_a_broker() -> Any:
    row = {"topic": "t", "queue": 1, "offset": 5, "key": None, "value": b"v", "headers": [("a", "b")], "tag": None}
    rest = {"gid": "g", "sequence": 0, "timestamp": 1_000, "born_at": 999}
    return pa.RecordBatch.from_pylist([{**row, **rest}], schema=broker_schema())


def test_rows_keep_their_values_in_sparks_types() -> None:
    (row,) = Shape(topic_schema(True)).fit(rows_of_a_broker()).to_pylist()
    assert row["headers"] == [("a", "b")]
    assert (row["offset"], row["value"], row["key"]) == (5, b"v", None)
    assert row["timestamp"].timestamp() == 1
    assert row["born_at"].timestamp() == 0.999


def test_a_users_schema_chooses_columns() -> None:
    chosen = StructType([StructField("value", topic_schema()["value"].dataType), StructField("offset", LongType())])
    shape = pickle.loads(pickle.dumps(Shape(chosen)))
    assert shape.fit(rows_of_a_broker()).to_pylist() == [{"value": b"v", "offset": 5}]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("colour", "a topic has no column colour string; it has topic string, queue int"),
        ("value", r"column value of a topic is binary, not string; .* selectExpr\('cast\(value as string\)'\)"),
    ],
)
def test_a_column_that_topics_do_not_have_is_refused(name: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Shape(StructType([StructField(name, StringType())]))
