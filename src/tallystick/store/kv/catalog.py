"""What a store keeps at hand: topics, channels, groups, counters. Bounded by their number, not by messages."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tallystick.core.calls import CallTopicView
from tallystick.core.errors import NotFound
from tallystick.core.token_records import TokenRecord
from tallystick.core.transaction import Prepared
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Engine
from tallystick.store.protocol import Channel

QueueId = tuple[int, int]  # topic id, queue
Origin = tuple[str, str, str, str]  # of a transaction: group, via, target, source


class Topic(Struct, frozen=True):
    id: int
    name: str
    queues: int
    retention_ms: int
    created_at: int
    begins: list[int] = []  # where the queues of a topic begin that was deleted and made again; the others begin at 0

    def begin(self, queue: int) -> int:
        return self.begins[queue] if queue < len(self.begins) else 0

    @property
    def most_queues(self) -> int:
        """Of this life or an earlier one: offsets of those that are not here are used up as well."""
        return max(self.queues, len(self.begins))


def unknown_topic(name: str) -> NotFound:
    return NotFound(f"there is no topic {name!r}", field="topic")


class Counters(Struct):
    """Numbers that would cost a scan to find again; stored with every batch that changes them."""

    topics: int = 0
    channels: int = 0
    groups: int = 0
    outcomes: int = 0
    first_outcome: int = 0
    delayed: int = 0
    pending: int = 0
    parked: int = 0
    parts: int = 0
    leased: int = 0
    calls_waiting: int = 0
    calls_parked: int = 0
    bodies: int = 0
    audit: int = 0


class LineMark(Struct, array_like=True):
    """A channel's due scan: nothing is due before `low`; nothing was ever claimed past `claimed`; no transaction
    waited longer than `longest` for its first check."""

    low: int = 0
    claimed: int = 0
    longest: int = 0


decode_mark = msgspec.msgpack.Decoder(LineMark).decode


class Recent:
    """Transactions prepared a moment ago, so that their commit needs no read. Bounded; a miss only costs a read."""

    MAX_BYTES = 48 * 1024 * 1024
    OVERHEAD = 1_000  # what the objects of one transaction take beside the values, roughly

    def __init__(self) -> None:
        self._records: dict[str, tuple[Prepared, int]] = {}
        self._bytes = 0

    def get(self, gid: str) -> Prepared | None:
        found = self._records.get(gid)
        return found[0] if found else None

    def add(self, gid: str, record: Prepared) -> None:
        size = self.OVERHEAD
        for message in record.messages:
            size += len(message.value)
        if record.pushed is not None:
            size += sum(len(call.body) + 200 for call in record.pushed.calls)
        self._records[gid] = (record, size)
        self._bytes += size
        while self._bytes > self.MAX_BYTES:
            self.drop(next(iter(self._records)))

    def drop(self, gid: str) -> None:
        found = self._records.pop(gid, None)
        if found:
            self._bytes -= found[1]


class Catalog:
    def __init__(self, engine: Engine) -> None:
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self.channels: dict[tuple[str, str], Channel] = {}  # by way and name
        self.groups: dict[str, int] = {}
        self.call_topics: dict[str, CallTopicView] = {}
        self.tokens: dict[str, TokenRecord] = {}  # replaced as a whole, never changed: others look at it as well
        self.ends: dict[QueueId, int] = {}
        self.starts: dict[QueueId, int] = {}
        self.marks: dict[int, LineMark] = {}
        self.origins: dict[Origin, int] = {}
        self.visible_low: dict[bytes, int] = {}  # per group and topic, where a scan for visible leases may begin
        # Per channel, before which nothing is in line. A mark is at most now, and is stored; this may be far ahead. No
        # claim walks twice over what has left the line early, which some servers keep while a snapshot is held.
        self.line_low: dict[int, int] = {}
        self.heads: dict[QueueId, int] = {}  # when the first chunk of a queue was stored, as far as a sweep has seen it
        self.round_robin: dict[int, int] = {}  # per topic, the turn of the next message without a key
        self.receive_turns: dict[int, int] = {}  # per topic, the queue at which the next receive begins
        # No lease of a call ends before this. A look at those that ended walks over all that were ever finished since
        # the engine last cleaned up, so it is made when one can have ended, not with every claim.
        self.first_lease_end = 0
        # The same of delayed messages and of parts, so that their sweeps ask a server only when something is due.
        self.first_delayed = self.first_part_end = 0
        self.recent = Recent()
        self.counters = Counters()
        self._load(engine)

    def _load(self, engine: Engine) -> None:
        stored = engine.get("index", keys.COUNTERS)
        if stored:
            self.counters = msgspec.msgpack.decode(stored, type=Counters)
        for _, value in engine.scan("index", *keys.TOPIC.all):
            self.add_topic(msgspec.msgpack.decode(value, type=Topic))
        for key, value in engine.scan("index", *keys.CALL_TOPIC.all):
            self.call_topics[keys.CALL_TOPIC.name(key)] = msgspec.msgpack.decode(value, type=CallTopicView)
        for key, value in engine.scan("index", *keys.CHANNEL.all):
            via, name = keys.CHANNEL.via_and_name(key)
            self.channels[(via, name)] = Channel(keys.read_u32(value), via, name)
        for key, value in engine.scan("index", *keys.GROUP.all):
            self.groups[keys.GROUP.name(key)] = keys.read_u32(value)
        for key, value in engine.scan("index", *keys.TOKEN.all):
            self.tokens[keys.TOKEN.name(key)] = msgspec.msgpack.decode(value, type=TokenRecord)
        for kind, known in ((keys.END, self.ends), (keys.START, self.starts)):
            for key, value in engine.scan("index", *kind.all):
                known[kind.where(key)] = keys.read_u64(value)
        for key, value in engine.scan("index", *keys.MARK.all):
            self.marks[keys.MARK.channel(key)] = decode_mark(value)

        for key, value in engine.scan("index", *keys.ORIGIN.all):
            self.origins[msgspec.msgpack.decode(value, type=Origin)] = keys.ORIGIN.number(key)

    def add_topic(self, topic: Topic) -> None:
        for queue, begin in enumerate(topic.begins):
            self.starts[(topic.id, queue)] = self.ends[(topic.id, queue)] = begin
        self.replace_topic(topic)

    def replace_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name], self.topics_by_id[topic.id]
        for known in (self.ends, self.starts, self.heads):
            for queue in range(topic.most_queues):
                known.pop((topic.id, queue), None)
        self.round_robin.pop(topic.id, None)
        self.receive_turns.pop(topic.id, None)
        for group_id in self.groups.values():
            self.visible_low.pop(keys.group_topic(group_id, topic.id), None)

    def mark(self, channel: int) -> LineMark:
        try:
            return self.marks[channel]
        except KeyError:
            mark = self.marks[channel] = LineMark()
            return mark

    def line_begin(self, channel: int) -> int:
        """Where a scan of the channel's line may begin."""
        return max(self.mark(channel).low, self.line_low.get(channel, 0))

    def enters_line(self, channel: int, at: int) -> None:
        if at < self.line_low.get(channel, 0):
            self.line_low[channel] = at
