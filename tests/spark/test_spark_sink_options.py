"""What the sink takes: columns and options, refused at planning with what is wrong and what to do."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sink_support import VALUES, as_task, schema

from tallystick.core.errors import InvalidRequest
from tallystick.spark.sink.columns import columns_of
from tallystick.spark.sink.options import parse
from tallystick.spark.sink.writer import BatchWriter, StreamWriter

URL = "http://127.0.0.1:7440"
GIVEN = {"url": URL, "topic": "orders"}


def _options(**options: str):
    return parse({"url": URL, **options}, streaming=False)


def test_unknown_columns_are_named_with_what_is_allowed() -> None:
    with pytest.raises(InvalidRequest) as caught:
        BatchWriter(schema(value="string", amount="bigint", id="bigint"), GIVEN, overwrite=False)
    assert "'amount', 'id'" in caught.value.detail
    assert "value (string or binary)" in caught.value.detail
    assert "deliver_at (timestamp)" in caught.value.detail


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ({"key": "string"}, GIVEN, "no column 'value'"),
        ({"value": "bigint"}, GIVEN, "column 'value': bigint, but must be string or binary; to_json"),
        ({"value": "string"}, {"url": URL}, "topic: a write needs one"),
        ({"value": "string", "topic": "binary"}, {"url": URL}, "column 'topic': binary, but must be string"),
        ({"value": "string", "key": "bigint"}, GIVEN, "column 'key': bigint, but must be string or binary"),
        ({"value": "string", "tag": "binary"}, GIVEN, "column 'tag': binary, but must be string"),
        ({"value": "string", "headers": "counts"}, GIVEN, "column 'headers': map<string,bigint>, but must be map"),
        ({"value": "string", "deliver_at": "timestamp_ntz"}, GIVEN, "column 'deliver_at': timestamp_ntz"),
        ({"value": "string", "deliver_at": "timestamp"}, {**GIVEN, "delay": "5s"}, "option 'delay'"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_at_planning(columns, options, told) -> None:
    for writer in (BatchWriter, StreamWriter):
        with pytest.raises(InvalidRequest) as caught:
            writer(schema(**columns), options, False)
        assert told in caught.value.detail


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = schema(value="string").add("value", "string")
    with pytest.raises(InvalidRequest, match="more than once"):
        BatchWriter(twice, GIVEN, overwrite=False)


@pytest.mark.parametrize(
    ("streaming", "options", "told"),
    [
        (False, {"topic": "t"}, "option 'url'"),
        (False, {**GIVEN, "url": "ftp://127.0.0.1:7440"}, "option 'url': 'ftp://127.0.0.1:7440' is no address"),
        (True, {**GIVEN, "url": "tallystick://broker"}, "option 'url': 'tallystick://broker' is no address"),
        (True, {**GIVEN, "url": "http://broker:port"}, "option 'url': 'http://broker:port' is no address"),
        (True, {**GIVEN, "failOnDifferentReplay": "no"}, "'no' is neither 'true' nor 'false'"),
        (False, {**GIVEN, "txnAppId": "a"}, "option 'txnVersion': is needed too"),
        (False, {**GIVEN, "txnVersion": "1"}, "option 'txnAppId': is needed too"),
        (False, {**GIVEN, "txnAppId": "a", "txnVersion": "-1"}, "option 'txnVersion'"),
        (False, {**GIVEN, "txnAppId": "a b", "txnVersion": "1"}, "option 'txnAppId': 'a b' is not a valid"),
        (True, {**GIVEN, "txnAppId": "x" * 101}, "at most 100|1 to 100"),
        (True, {**GIVEN, "txnVersion": "1"}, "a stream's version is its batch id"),
        (True, {**GIVEN, "topic": "no spaces"}, "option 'topic': 'no spaces' is not a valid name"),
        (True, {**GIVEN, "partTtl": "0s"}, "option 'partTtl'"),
        (True, {**GIVEN, "partTtl": "soon"}, "'soon' is not a duration"),
        (True, {**GIVEN, "delay": "400d"}, "longer than 366d"),
        (True, {**GIVEN, "txnApplId": "a"}, "did you mean 'txnAppId'"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_at_planning(streaming, options, told) -> None:
    with pytest.raises(InvalidRequest, match=told):
        (StreamWriter if streaming else BatchWriter)(VALUES, options, False)


def test_names_of_options_may_be_written_in_any_case() -> None:
    found = parse({"URL": URL, "Topic": "t", "TXNAPPID": "a", "txnversion": "7", "PARTTTL": "5m"}, streaming=False)
    assert (found.app, found.version, found.part_ttl_ms) == ("a", 7, 300_000)


def test_overwriting_is_refused_and_the_message_says_what_to_use() -> None:
    with pytest.raises(InvalidRequest, match=r"mode\('append'\)"):
        BatchWriter(VALUES, GIVEN, overwrite=True)
    with pytest.raises(InvalidRequest, match=r"outputMode\('complete'\).*foreachBatch"):
        StreamWriter(VALUES, GIVEN, overwrite=True)


def test_a_query_that_spark_does_not_name_needs_an_application_id() -> None:
    with as_task(query=""), pytest.raises(InvalidRequest, match="txnAppId"):
        StreamWriter(VALUES, GIVEN, overwrite=False).write(iter(()))


def test_the_option_topic_wins_over_the_column() -> None:
    batch = pa.record_batch({"topic": ["a", None], "value": ["1", "2"]})
    by_option = columns_of(schema(topic="string", value="string"), _options(topic="orders"))
    by_option.check(batch)
    assert by_option.shaped(batch).column("topic").to_pylist() == ["orders", "orders"]
    by_column = columns_of(schema(topic="string", value="string"), _options())
    assert by_column.shaped(batch).column("topic").to_pylist() == ["a", None]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (pa.record_batch({"value": pa.array(["1", None, None])}), "column 'value': 2 of 3 rows have none; filter"),
        (
            pa.record_batch({"value": ["1", "2"], "topic": pa.array([None, "t"])}),
            "column 'topic': 1 of 2 rows have none; filter",
        ),
        (
            pa.record_batch({"value": ["1"], "headers": pa.array([[("a", None)]], pa.map_(pa.string(), pa.string()))}),
            "column 'headers': a header without a value; map_filter",
        ),
    ],
)
def test_a_row_without_what_a_message_needs_is_refused(batch, told) -> None:
    kinds = {"value": "string", "topic": "string", "headers": "headers"}
    columns = {name: kinds[name] for name in batch.schema.names}
    options = _options() if "topic" in columns else _options(topic="t")
    with pytest.raises(InvalidRequest) as caught:
        columns_of(schema(**columns), options).check(batch)
    assert told in caught.value.detail


def test_bytes_as_key_must_be_text() -> None:
    columns = columns_of(schema(value="binary", key="binary"), _options(topic="t"))
    good = pa.record_batch({"value": [b"\xff"], "key": ["käse".encode()]})
    assert columns.shaped(good).column("key").to_pylist() == ["käse"]
    with pytest.raises(InvalidRequest, match=r"column 'key'.*base64\(key\)"):
        columns.shaped(pa.record_batch({"value": [b""], "key": [b"\xff"]}))
