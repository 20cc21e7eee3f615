"""What the sink knows a batch again by: a digest of its rows, whatever their order and their tasks. A batch whose
number is taken by other rows is an error, not a replay."""

from __future__ import annotations

import logging
import random
from typing import Any

import pyarrow as pa
import pytest
from sink_support import (
    NOTHING,
    OTHER_QUERY,
    Play,
    batch_writer,
    content,
    difference,
    expected,
    last,
    numbers,
    schema,
    values,
)

from brokers import BrokerProcess
from tallystick.core.errors import Conflict, DifferentContent
from tallystick.core.ids import new_gid
from tallystick.link import Link
from tallystick.spark.sink.content import Content, content_of

HEADERS = pa.map_(pa.string(), pa.string())
ALL = schema(value="binary", key="string", topic="string", tag="string", headers="headers", deliver_at="timestamp")


@pytest.fixture
def topic() -> str:
    return f"t-{new_gid()}"


@pytest.fixture
def play(broker: BrokerProcess, topic: str) -> Play:
    return Play(broker.url, topic, txnAppId=new_gid())


# --- the digest ------------------------------------------------------------------------------------------------------


def row(**fields: Any) -> dict[str, Any]:
    return {"topic": "t", "value": b"v", "key": "k", "tag": "x", "headers": [("a", "1")], "deliver_at": 7, **fields}


def shaped(*rows: dict[str, Any]) -> pa.RecordBatch:
    kinds = {
        "topic": pa.string(),
        "value": pa.binary(),
        "key": pa.string(),
        "tag": pa.string(),
        "headers": HEADERS,
        "deliver_at": pa.timestamp("ms", tz="UTC"),
    }
    return pa.record_batch({name: pa.array([one[name] for one in rows], kind) for name, kind in kinds.items()})


def test_neither_order_nor_tasks_nor_batches_of_arrow_matter() -> None:
    rows = [row(value=str(number % 90).encode(), key=f"k{number % 7}") for number in range(200)]
    whole = content_of(shaped(*rows))
    shuffle = random.Random(3)
    for _ in range(10):
        shuffle.shuffle(rows)
        cuts = sorted(shuffle.sample(range(200), 5))
        batch = shaped(*rows)
        pieces = [batch.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, 200], strict=True)]
        assert sum(map(content_of, pieces), Content()) == whole


DIFFERENT = [
    row(topic="u"),
    row(value=b"w"),
    row(value=b""),
    row(key="l"),
    row(key=None),
    row(key=""),
    row(tag="y"),
    row(tag=None),
    row(tag=""),
    row(key="kx", tag=""),
    row(key="", tag="kx"),
    row(tag="xv", value=b""),
    row(tag=None, value=b"xv"),
    row(headers=None),
    row(headers=[("a", "2")]),
    row(headers=[("b", "1")]),
    row(headers=[("a", "1"), ("b", "")]),
    row(headers=[("a", '1"], ["b", "')]),
    row(deliver_at=8),
    row(deliver_at=None),
]


def test_every_field_counts_and_none_is_taken_for_another() -> None:
    digests = [content_of(shaped(one)).digest for one in (row(), *DIFFERENT)]
    assert len(set(digests)) == len(digests)


def test_what_is_the_same_to_the_broker_is_the_same() -> None:
    one, other = [("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")]
    assert content_of(shaped(row(headers=one))) == content_of(shaped(row(headers=other)))
    assert content_of(shaped(row(headers=None))) == content_of(shaped(row(headers=[])))
    bare = shaped(row(key=None, tag=None, headers=None, deliver_at=None))
    assert content_of(bare) == content_of(bare.select(["topic", "value"]))


def test_rows_without_what_they_must_have_are_not_taken_for_empty_ones() -> None:
    """A replay is compared and not sent, so nobody has refused them."""
    empty, null = shaped(row(value=b"")), shaped(row(value=None))
    assert content_of(empty) != content_of(null)
    empty, null = shaped(row(headers=[("a", "")])), shaped(row(headers=[("a", None)]))
    assert content_of(empty) != content_of(null)
    alone, beside = shaped(row(), row()), shaped(row(), row(), row(value=None))
    assert content_of(beside.slice(0, 2)) == content_of(alone)
    assert content_of(beside.slice(0, 2)) + content_of(beside.slice(2)) == content_of(beside)


def test_the_digest_of_rows_does_not_change() -> None:
    """Batches that are committed are compared with it after an upgrade: another digest needs another scheme."""
    rows = [
        row(),
        row(value=b"x" * 2_000, key=None, tag="", headers=[("a", "1"), ("b", "2")]),
        row(value=b"", headers=None, deliver_at=None),
        row(headers=[], key="\u00fc"),
    ]
    assert content_of(shaped(*rows)).digest == "rows2:cbbf9004e3bdf6613f3539b119cf62ad"


def test_rows_that_exchange_their_values_or_are_doubled_are_others() -> None:
    pairs = shaped(row(key="a", value=b"1"), row(key="b", value=b"2"))
    crossed = shaped(row(key="a", value=b"2"), row(key="b", value=b"1"))
    assert content_of(pairs) != content_of(crossed)
    doubled = [shaped(row(value=one), row(value=one), row(value=b"c")) for one in (b"a", b"b")]
    assert content_of(doubled[0]) != content_of(doubled[1])


# --- a number that is taken ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [numbers(20, 45), numbers(21, 41), numbers(20, 39), numbers(0, 0)])
def test_a_batch_of_other_rows_under_the_last_number_is_refused(
    broker: BrokerProcess, topic: str, play: Play, again: pa.RecordBatch
) -> None:
    """More rows, as many, fewer and none: by tasks that skip, and by a commit that is told of a duplicate."""
    play.run(0, numbers(0, 20))
    early = play.tasks(1, [again])
    (first, *_) = play.run(1, numbers(20, 30), numbers(30, 40))
    skipped = play.tasks(1, [again.slice(0, 7), again.slice(7)])
    assert all(message.skipped for message in skipped)
    for messages in (early, skipped):
        with pytest.raises(DifferentContent, match=r"but with other content: 20 rows .*failOnDifferentReplay=false"):
            play.commit(1, messages)
    assert difference(broker.url, topic, expected(0, 40)) == NOTHING
    play.run(2, numbers(40, 50))
    assert last(broker.url, first.app) == 2


def test_the_error_says_what_was_found_and_where(play: Play) -> None:
    play.run(3, numbers(0, 20))
    with pytest.raises(DifferentContent, match=r"batch 3 of .* gid spark:.*: 20 rows then, 25 now"):
        play.run(3, numbers(0, 25))
    with pytest.raises(DifferentContent, match="20 rows both times, but not the same"):
        play.run(3, numbers(1, 21))


def test_a_replay_in_other_tasks_and_another_order_passes(broker: BrokerProcess, topic: str, play: Play) -> None:
    early = play.tasks(0, [numbers(15, 20), numbers(0, 15)])
    play.run(0, numbers(0, 20))
    play.commit(0, early)
    play.run(0, numbers(12, 20), numbers(0, 5), numbers(0, 0), numbers(5, 12))
    assert difference(broker.url, topic, expected(0, 20)) == NOTHING


def test_some_tasks_that_skip_and_some_that_do_not_are_added_up(broker: BrokerProcess, topic: str, play: Play) -> None:
    early = play.task(0, numbers(0, 5))
    play.run(0, numbers(0, 20))
    play.commit(0, [early, play.task(0, numbers(5, 20))])
    with pytest.raises(DifferentContent, match="20 rows then, 21 now"):
        play.commit(0, [early, play.task(0, numbers(5, 21))])
    assert difference(broker.url, topic, expected(0, 20)) == NOTHING


def test_all_columns_are_compared(broker: BrokerProcess, topic: str) -> None:
    play = Play(broker.url, topic, columns=ALL, txnAppId=new_gid())
    one = row(topic=topic)
    play.run(0, shaped(one))
    play.run(0, shaped(one))
    for name, value in (("key", "l"), ("tag", "y"), ("headers", [("a", "2")]), ("deliver_at", 8), ("value", b"w")):
        with pytest.raises(DifferentContent, match="not the same"):
            play.run(0, shaped({**one, name: value}))


def test_the_time_of_an_option_delay_is_not_part_of_the_rows(broker: BrokerProcess, topic: str) -> None:
    play = Play(broker.url, topic, txnAppId=new_gid(), delay="1ms")
    play.run(0, numbers(0, 5))
    play.run(0, numbers(0, 5))


def test_a_batch_of_unknown_content_counts_as_the_same(broker: BrokerProcess, topic: str) -> None:
    """Committed by an earlier release, or by somebody who gives no digest."""
    app = new_gid()
    play = Play(broker.url, topic, txnAppId=app)
    message = play.task(4, numbers(0, 5))
    with Link(broker.url) as link:
        link.post("ledger", app, "4", parts=[{"part": message.part, "count": 5}])
    play.run(4, numbers(0, 9))
    assert difference(broker.url, topic, expected(0, 5)) == NOTHING
    play.run(5, numbers(5, 10))
    with pytest.raises(DifferentContent):
        play.run(5, numbers(5, 9))


@pytest.mark.parametrize("scheme", ["rows1", "others"])
def test_of_a_batch_with_a_digest_of_another_kind_only_the_number_of_rows_may_tell(
    broker: BrokerProcess, topic: str, scheme: str
) -> None:
    """Committed by a release that made its digests in another way, and replayed by this one after the upgrade: what
    can be compared is, and the same rows pass. A digest that somebody else made tells nothing."""
    app = new_gid()
    play = Play(broker.url, topic, txnAppId=app)
    message = play.task(4, numbers(0, 5))
    with Link(broker.url) as link:
        link.post("ledger", app, "4", parts=[{"part": message.part, "count": 5}], digest=f"{scheme}:{7:032x}")
    play.run(4, numbers(0, 5))
    if scheme == "rows1":
        with pytest.raises(DifferentContent, match="5 rows then, 9 now"):
            play.run(4, numbers(0, 9))
    else:
        play.run(4, numbers(0, 9))
    assert difference(broker.url, topic, expected(0, 5)) == NOTHING
    play.run(5, numbers(5, 10))
    with pytest.raises(DifferentContent, match="not the same"):
        play.run(5, numbers(6, 11))


def test_other_rows_are_dropped_where_that_is_asked_for(
    broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_gid()
    Play(broker.url, topic, txnAppId=app).run(0, numbers(0, 20))
    lenient = Play(broker.url, topic, txnAppId=app, failOnDifferentReplay="false")
    with caplog.at_level(logging.WARNING):
        lenient.run(0, numbers(0, 25))
    assert "these rows are dropped" in caplog.text
    assert "20 rows then, 25 now" in caplog.text
    lenient.run(1, numbers(20, 30))
    assert difference(broker.url, topic, expected(0, 30)) == NOTHING
    with pytest.raises(Conflict, match="has committed batch 1 under the same txnAppId"):
        Play(broker.url, topic, OTHER_QUERY, txnAppId=app, failOnDifferentReplay="false").run(1, numbers(0, 3))


@pytest.mark.parametrize("again", [numbers(20, 32), numbers(50, 52), numbers(0, 0)])
def test_a_batch_with_fewer_rows_is_not_dropped(broker: BrokerProcess, topic: str, again: pa.RecordBatch) -> None:
    """The rows that it lacks may be in the next batches, which would write them twice."""
    app = new_gid()
    for batch in (0, 1):
        Play(broker.url, topic, txnAppId=app).run(batch, numbers(20 * batch, 20 * batch + 20))
    lenient = Play(broker.url, topic, txnAppId=app, failOnDifferentReplay="false")
    for _ in range(2):
        with pytest.raises(DifferentContent, match=r"does not drop a batch with fewer rows.*checkpoint.*txnAppId"):
            lenient.run(1, again)
    assert last(broker.url, app) == 1
    assert difference(broker.url, topic, expected(0, 40)) == NOTHING
    Play(broker.url, topic, txnAppId=new_gid()).run(1, again)  # the way out that the error names
    assert sum(content(broker.url, topic).values()) == 40 + again.num_rows


# --- batch writes ----------------------------------------------------------------------------------------------------


def write(broker: BrokerProcess, topic: str, app: str, version: int, batch: pa.RecordBatch, **options: str) -> None:
    writer = batch_writer(broker.url, topic=topic, txnAppId=app, txnVersion=str(version), **options)
    writer.commit([writer.write(iter([batch]))])


def test_a_batch_write_of_other_rows_under_a_known_number_is_refused(broker: BrokerProcess, topic: str) -> None:
    app = new_gid()
    for version in range(5):
        write(broker, topic, app, version, values(f"{version}"))
    for version in range(5):
        write(broker, topic, app, version, values(f"{version}"))
        with pytest.raises(DifferentContent, match="1 rows both times, but not the same"):
            write(broker, topic, app, version, values("other"))
        write(broker, topic, app, version, values("other"), failOnDifferentReplay="false")
        write(broker, topic, app, version, values(), failOnDifferentReplay="false")  # no later batch has its rows
    assert difference(broker.url, topic, expected(0, 5)) == NOTHING


def test_a_batch_write_under_an_older_number_that_was_never_used_is_refused(broker: BrokerProcess, topic: str) -> None:
    """A day that is filled in later: its rows would be dropped unseen."""
    app = new_gid()
    for version in (20261114, 20261116):
        write(broker, topic, app, version, values(str(version)))
    for version in (20261115, 20261113):
        with pytest.raises(DifferentContent, match="no batch of that number is among the last 2"):
            write(broker, topic, app, version, values(str(version)))
        write(broker, topic, app, version, values(str(version)), failOnDifferentReplay="false")
    assert content(broker.url, topic) == {"20261114": 1, "20261116": 1}


def test_a_write_without_a_number_is_never_compared(broker: BrokerProcess, topic: str) -> None:
    for _ in range(2):
        writer = batch_writer(broker.url, topic=topic)
        writer.commit([writer.write(iter([numbers(0, 5)]))])
    assert content(broker.url, topic) == expected(0, 5) + expected(0, 5)
