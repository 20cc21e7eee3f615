"""What the source's tests share: messages made by hand, readers played through as Spark does it, and what came out."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit

from brokers import BrokerProcess
from raw_client import RawClient
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import Send
from tallystick.spark.schema import topic_schema
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.reader import BatchReader, StreamReader

Row = tuple[Any, ...]
_numbers = itertools.count()


def new_topic(client: RawClient, queues: int = 2, name: str = "orders") -> str:
    """A topic that no other test has."""
    topic = f"{name}-{next(_numbers)}"
    put_topic(client, topic, queues)
    return topic


def put_topic(client: RawClient, topic: str, queues: int) -> None:
    assert client.json("PUT", f"/v1/topics/{topic}", {"queues": queues}).status == 200


def produce(client: RawClient, topic: str, count: int, at_once: int = 500, size: int = 0) -> None:
    """Messages with keys, so that they go to all queues; every third has headers, every fourth a tag."""
    for first in range(0, count, at_once):
        client.do(Send([_message(topic, number, size) for number in range(first, min(count, first + at_once))]))


def _message(topic: str, number: int, size: int) -> OutgoingMessage:
    headers = {"trace": str(number)} if number % 3 == 0 else None
    tag = "big" if number % 4 == 0 else None
    return OutgoingMessage(topic, b"%d" % number + bytes(size), str(number), headers, tag)


def trim(client: RawClient, topic: str, **offsets: int) -> None:
    """Drop what lies before the offsets: trim(client, "orders", q0=5)."""
    content = {"offsets": {queue[1:]: offset for queue, offset in offsets.items()}}
    answer = client.json("POST", f"/v1/topics/{topic}/trim", content)
    assert answer.status == 200, answer.body


def ends(client: RawClient, topic: str) -> list[int]:
    return next(view.ends for view in client.topics() if view.name == topic)


def stored(messages: Iterable[StoredMessage]) -> Counter[Row]:
    return Counter(
        (one.topic, one.queue, one.offset, one.key, one.value, one.tag, one.sequence, one.stored_at, one.born_at)
        for one in messages
    )


def truth(client: RawClient, *topics: str) -> Counter[Row]:
    """Everything that the broker holds, read without Spark's code and without Arrow."""
    return Counter(stored(one for topic in topics for one in client.messages(topic)))


def rows(batches: Iterable[Any]) -> Counter[Row]:
    """What a reader gave, in the form of `truth`."""
    columns = ("topic", "queue", "offset", "key", "value", "tag", "sequence")
    found: Counter[Row] = Counter()
    for batch in batches:
        times = [[moment.value // 1000 for moment in batch.column(name)] for name in ("timestamp", "born_at")]
        found.update(zip(*(batch.column(name).to_pylist() for name in columns), *times, strict=True))
    return found


def _place_of_key(key: str) -> tuple[bool, bool, str]:
    """Topics by name, then what a mark carries beside them."""
    return key.startswith("__"), key == "__begin__", key


class Played:
    """A stream reader as Spark uses it: one object plans, copies of a fresh one read, offsets travel as JSON."""

    def __init__(self, broker: BrokerProcess, **options: str) -> None:
        given = {"url": broker.url, "pollWait": "20ms", "retryTimeout": "10s", **options}
        self.reader = StreamReader(given, topic_schema())
        self._copy = pickle.dumps(StreamReader(given, topic_schema()))
        self.place: dict[str, Any] = self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> tuple[dict[str, Any], list[InputPartition]]:
        end = self.reader.latestOffset(self.place, limit or self.reader.getDefaultReadLimit())
        assert list(end) == sorted(end, key=_place_of_key), "the order of the keys counts"
        return end, [] if end == self.place else self.reader.partitions(self.place, end)

    def step(self, limit: ReadLimit | None = None) -> Counter[Row]:
        """One micro-batch: what it read."""
        end, parts = self.plan(limit)
        found = self.read(parts)
        self.place = end
        return found

    def read(self, parts: Iterable[InputPartition]) -> Counter[Row]:
        return rows(
            batch for part in parts for batch in pickle.loads(self._copy).read(pickle.loads(pickle.dumps(part)))
        )

    def replayed(self, broker: BrokerProcess, **options: str) -> Played:
        """The same query, started again from where its last finished batch ended."""
        other = Played(broker, **options)
        other.place = self.place
        return other

    def close(self) -> None:
        self.reader.stop()


def batch(broker: BrokerProcess, **options: str) -> BatchReader:
    return BatchReader({"url": broker.url, "retryTimeout": "10s", **options}, topic_schema())


def read_all(reader: BatchReader) -> Counter[Row]:
    """As Spark does it: without partitions, one of its own making is read."""
    parts = reader.partitions() or [InputPartition(None)]
    copy = pickle.loads(pickle.dumps(reader))
    return rows(_checked(found) for part in parts for found in copy.read(part))


def _checked(found: Any) -> Any:
    assert found.schema.equals(to_arrow_schema(topic_schema(), timezone="UTC"), check_metadata=False)
    return found


def spans(parts: Iterable[InputPartition]) -> list[tuple[str, int, int, int]]:
    return [(part.topic, part.queue, part.start, part.end) for part in parts if isinstance(part, Range)]


@contextlib.contextmanager
def playing(broker: BrokerProcess) -> Iterator[Callable[..., Played]]:
    """Makes stream readers and closes them at the end."""
    with contextlib.ExitStack() as opened:

        def play(**options: str) -> Played:
            return opened.enter_context(contextlib.closing(Played(broker, **options)))

        yield play


def big_topic(client: RawClient) -> str:
    """Too large for what lies in buffers between the broker and a reader that pauses."""
    topic = new_topic(client, queues=1)
    produce(client, topic, 6_000, at_once=200, size=4_000)
    return topic
