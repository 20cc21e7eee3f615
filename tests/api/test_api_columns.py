"""What came as Arrow and what came as messages, read in every way that the API has: all see the same."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import PreparePart
from tallystick.core.wire import ARROW
from tallystick.link import Link

MAP = pa.map_(pa.string(), pa.string())
COUNT = 400
Row = tuple[int, bytes, str | None, dict[str, str] | None, str | None]


def sent_rows() -> list[Row]:
    return [
        (
            one,
            f"{one}-".encode() + b"\xff" * 500,
            f"k{one % 9}" if one % 4 else None,
            {"h": str(one)} if one % 3 else None,
            None if one % 5 else "red",
        )
        for one in range(COUNT)
    ]


def as_stream(topic: str) -> bytes:
    _, values, keys, headers, tags = zip(*sent_rows(), strict=True)
    pairs = [None if one is None else list(one.items()) for one in headers]
    table = pa.table(
        {
            "topic": pa.array([topic] * COUNT),
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.string()),
            "headers": pa.array(pairs, MAP),
            "tag": pa.array(tags, pa.string()),
        }
    )
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()


@pytest.fixture(scope="module")
def filled() -> Iterator[BrokerProcess]:
    """A broker with a topic of each layout, and one with both, after a restart."""
    with running_broker() as broker, Link(broker.url, patience=20) as link, RawClient(broker.url) as client:
        for topic in ("columns", "chunks", "both", "both-again"):
            name = topic.removesuffix("-again")
            if topic in ("columns", "both"):
                link.post_arrow("parts", topic, body=as_stream(name), index=0)
            else:
                messages = [OutgoingMessage(name, *rest) for _, *rest in sent_rows()]
                client.do(PreparePart(topic, messages))
            link.post("ledger", topic, "0", parts=[{"part": topic, "count": COUNT}])
        segments = (broker.data_dir / "bodies").glob("*.segment")
        assert sum(path.stat().st_size for path in segments) > 2 * COUNT * 500  # of two parts, in columns
        broker.kill()
        broker.start()
        yield broker


def by_msgpack(client: RawClient, link: Link, topic: str) -> list[Row]:
    return [(one.sequence, one.value, one.key, one.headers, one.tag) for one in client.messages(topic)]


def by_json(client: RawClient, link: Link, topic: str) -> list[Row]:
    found: list[Row] = []
    for queue, end in enumerate(link.get("topics", topic)["ends"]):
        offset = 0
        while offset < end:
            path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max=7"
            answer = json.loads(client.request("GET", path).body)
            assert [one["offset"] for one in answer["messages"]] == list(range(offset, answer["next"]))
            offset = answer["next"]
            found += map(_row_of_json, answer["messages"])
    return found


def _row_of_json(one: dict[str, Any]) -> Row:
    value = base64.b64decode(one["value_base64"])
    return one["sequence"], value, one.get("key"), one.get("headers"), one.get("tag")


def by_receive(client: RawClient, link: Link, topic: str) -> list[Row]:
    found: list[Row] = []
    while got := client.receive(f"group-of-{topic}", topic, max=100):
        for one in got:
            of = one.message
            found.append((of.sequence, of.value, of.key, of.headers, of.tag))
    return found


def by_arrow(client: RawClient, link: Link, topic: str) -> list[Row]:
    return [row for queue in range(4) for row in arrow_rows(link, topic, queue)]


def by_arrow_in_pieces(client: RawClient, link: Link, topic: str) -> list[Row]:
    """From the middle of what is stored together to the middle of it."""
    ends = link.get("topics", topic)["ends"]
    return [
        row
        for queue, end in enumerate(ends)
        for offset in range(0, end, 7)
        for row in arrow_rows(link, topic, queue, offset=offset, end=offset + 7)
    ]


def arrow_rows(link: Link, topic: str, queue: int, **query: Any) -> list[Row]:
    with link.arrow("topics", topic, "queues", str(queue), "messages", **query) as response:
        table = pa.ipc.open_stream(response).read_all()
    table.validate(full=True)
    first = query.get("offset", 0)
    assert table["offset"].to_pylist() == list(range(first, first + len(table)))
    return [
        (row["sequence"], row["value"], row["key"], dict(row["headers"]) if row["headers"] else None, row["tag"])
        for row in table.to_pylist()
    ]


READERS = (by_msgpack, by_json, by_receive, by_arrow, by_arrow_in_pieces)


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("topic", ["columns", pytest.param("chunks", marks=pytest.mark.full), "both"])
def test_every_reader_sees_what_was_sent(filled: BrokerProcess, topic: str, reader: Any) -> None:
    with RawClient(filled.url) as client, Link(filled.url) as link:
        found = reader(client, link, topic)
    expected = sent_rows() * (2 if topic == "both" else 1)
    assert sorted(found, key=lambda row: row[0]) == sorted(expected, key=lambda row: row[0])
    for key in {row[2] for row in sent_rows()} - {None}:
        of_key = [row[0] for row in found if row[2] == key]
        in_order = [row[0] for row in sent_rows() if row[2] == key]
        assert of_key == in_order * (2 if topic == "both" else 1)


def test_a_key_is_in_one_queue_whichever_way_it_came(filled: BrokerProcess) -> None:
    with RawClient(filled.url) as client:
        homes = {
            topic: {one.key: one.queue for one in client.messages(topic) if one.key} for topic in ("columns", "chunks")
        }
    assert homes["columns"] == homes["chunks"]


def test_a_topic_that_grew_gets_a_part_that_was_divided_for_it(filled: BrokerProcess) -> None:
    """Divided anew for each request, so one that comes after the change is taken."""
    with RawClient(filled.url) as client, Link(filled.url) as link:
        assert client.json("PUT", "/v1/topics/growing", {"queues": 2}).status == 200
        link.post_arrow("parts", "first", body=as_stream("growing"), index=0)
        assert client.json("PUT", "/v1/topics/growing", {"queues": 6}).status == 200
        answer = client.request("POST", "/v1/parts/second?index=0", as_stream("growing"), {"Content-Type": ARROW})
        assert answer.status == 201
        parts = [{"part": part, "count": COUNT} for part in ("first", "second")]
        assert link.post("ledger", "growing", "0", parts=parts)["messages"] == 2 * COUNT
        queues = {one.queue for one in client.messages("growing") if one.sequence >= COUNT}
    assert queues == set(range(6))
