"""Receive, ack, nack, renew: messages lent to one consumer of a group at a time.

A queue has one cursor per group; what lies before it and has no lease is settled. A lease that nobody settles
becomes visible again at its time, found through an index by time, so a receive costs what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from tallystick.core.errors import DamagedData, InvalidRequest
from tallystick.core.ids import new_lease_id
from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.names import dead_letter_topic
from tallystick.core.ops import Ack, Nack, OpResult, Renew
from tallystick.core.wire import Delivery
from tallystick.store.kv import keys, places, topics
from tallystick.store.kv.batch import NEVER, Batch, Look, encode
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.places import Cursor, store_cursor
from tallystick.store.kv.reader import QueueReader
from tallystick.store.protocol import Event, Receive, Received

MAX_BURIED = 1_000  # dead letters that one receive may make


class Lease(Struct, array_like=True):
    id: int
    attempt: int
    visible_at: int
    key: str | None = None


_decode_lease = msgspec.msgpack.Decoder(Lease).decode


# --- receive -----------------------------------------------------------------------------------------------------


class _Receiving:
    """One receive: first what became visible again, then what the cursors have not reached.

    Damage in one place does not keep anybody from what lies elsewhere: it is told once there is nothing else to lend.
    What is damaged stays where it is, to be lent when it was restored."""

    def __init__(self, batch: Batch, op: Receive, reader: QueueReader) -> None:
        self.batch, self.op, self.reader = batch, op, reader
        places.check_group(batch, op.group)
        topics.require(batch, [op.topic], f"a receive of group {op.group!r}")
        self.topic = batch.catalog.topics[op.topic]
        self.gt = keys.group_topic(places.group_id(batch, op.group), self.topic.id)
        self.deliveries: list[Delivery] = []
        self.next_visible: int | None = None
        self.damage: DamagedData | None = None

    def run(self) -> Received:
        self.take_visible()
        turns = self.batch.catalog.receive_turns
        first = turns[self.topic.id] = turns.get(self.topic.id, 0) + 1
        for turn in range(self.topic.queues):
            if len(self.deliveries) >= self.op.max:
                break
            self.take_fresh((first + turn) % self.topic.queues)
        if self.damage is not None and not self.deliveries:
            raise self.damage
        return Received(self.deliveries, self.next_visible)

    def take_visible(self) -> None:
        low = self.batch.catalog.visible_low.get(self.gt, 0)
        found = self.batch.foreseeing(self.batch.scan("index", *keys.VISIBLE.since(self.gt, low)), self.looks)
        reached = NEVER
        for taken, (key, _) in enumerate(found):
            at, queue, offset = keys.VISIBLE.read(key)
            # Those that end in the dead-letter topic are no deliveries, so they have a limit of their own.
            if at > self.batch.now or len(self.deliveries) >= self.op.max or taken >= self.op.max + MAX_BURIED:
                self.next_visible = at
                reached = min(reached, at)
                break
            try:
                self.take_again(key, queue, offset)
            except DamagedData as error:
                self.damage = error
                reached = min(reached, at)
        if self.deliveries:
            reached = min(reached, self.batch.now + self.op.invisible_ms)
        # The next scan begins at the first lease that is left, even if it ends far ahead: a server may keep the rows
        # of leases that are gone for as long as a snapshot is held, and no scan should walk over them twice.
        self.batch.catalog.visible_low[self.gt] = reached

    def looks(self, entry: bytes) -> Iterator[Look]:
        at, queue, offset = keys.VISIBLE.read(entry)
        if at <= self.batch.now:
            yield "index", keys.LEASE.key(self.gt, queue, offset)
            yield "index", keys.CURSOR.key(self.gt, queue)

    def take_again(self, entry: bytes, queue: int, offset: int) -> None:
        stored = self.batch.get("index", keys.LEASE.key(self.gt, queue, offset))
        if stored is None:
            self.batch.delete("index", entry)
            return
        lease = _decode_lease(stored)
        message = self.reader.message(self.topic, queue, offset)  # if it is damaged, nothing has changed
        self.batch.delete("index", entry)
        if message is None:  # trimmed by retention while it was leased
            release(self.batch, self.gt, queue, offset)
        elif lease.attempt >= self.batch.settings.max_attempts:
            release(self.batch, self.gt, queue, offset)
            bury(self.batch, self.op.group, message, lease.attempt, "not settled before its lease ended")
        else:
            self.lend(message, lease.attempt + 1)

    def take_fresh(self, queue: int) -> None:
        cursor = load_cursor(self.batch, self.gt, self.topic, queue, self.op.start)
        if cursor.leased >= self.batch.settings.max_leased:
            return
        busy = self.busy_keys(queue) if self.op.ordered else set()
        before = cursor.next
        for message in self.whole_ones(queue, cursor.next):
            if len(self.deliveries) >= self.op.max or cursor.leased >= self.batch.settings.max_leased:
                break
            wanted = self.op.tags is None or message.tag in self.op.tags
            if wanted and self.op.ordered:
                lock = message.key or ""
                if lock in busy:
                    break  # the next of this key waits for the one before; so does what is behind it
                busy.add(lock)
            cursor.next = message.offset + 1
            if wanted:
                cursor.leased += 1
                self.batch.counters.leased += 1
                self.lend(message, 1)
        if cursor.next != before:
            store_cursor(self.batch, self.gt, queue, cursor)

    def whole_ones(self, queue: int, offset: int) -> Iterator[StoredMessage]:
        """The messages from an offset on, up to the first that is damaged."""
        try:
            yield from self.reader.messages(self.topic, queue, offset)
        except DamagedData as error:
            self.damage = error

    def busy_keys(self, queue: int) -> set[str]:
        found = self.batch.scan("index", *keys.LEASE.of_queue(self.gt, queue))
        return {_decode_lease(value).key or "" for _, value in found}

    def lend(self, message: StoredMessage, attempt: int) -> None:
        until = self.batch.now + self.op.invisible_ms
        lease = Lease(new_lease_id(), attempt, until, message.key if self.op.ordered else None)
        store_lease(self.batch, self.gt, message.queue, message.offset, lease)
        receipt = f"{message.topic}/{message.queue}/{message.offset}/{lease.id}"
        self.deliveries.append(Delivery(message, receipt, attempt, until))


def receive(batch: Batch, op: Receive, reader: QueueReader) -> Received:
    return _Receiving(batch, op, reader).run()


# --- leases and cursors ------------------------------------------------------------------------------------------


def load_cursor(batch: Batch, gt: bytes, topic: Topic, queue: int, start: str) -> Cursor:
    known = places.cursor(batch, gt, queue)
    kept_from = batch.catalog.starts.get((topic.id, queue), 0)
    if known is not None:
        known.next = max(known.next, kept_from)
        return known
    if start == "earliest" or places.has_begun(batch, gt, topic.queues):
        return Cursor(kept_from)
    for each in range(topic.queues):  # "latest" is fixed at the first receive, not at the first message
        store_cursor(batch, gt, each, Cursor(batch.catalog.ends.get((topic.id, each), 0)))
    return Cursor(batch.catalog.ends.get((topic.id, queue), 0))


def move(batch: Batch, gt: bytes, queue: int, offset: int) -> None:
    """Have the group go on from `offset`. Whoever holds a message of the queue holds nothing any more: what lies
    before is settled, what follows is lent again, as if for the first time."""
    for key, value in list(batch.scan("index", *keys.LEASE.of_queue(gt, queue))):
        batch.delete("index", key)
        batch.delete("index", keys.VISIBLE.key(gt, _decode_lease(value).visible_at, queue, keys.LEASE.offset(key)))
        batch.counters.leased -= 1
    store_cursor(batch, gt, queue, Cursor(offset))


def store_lease(batch: Batch, gt: bytes, queue: int, offset: int, lease: Lease) -> None:
    batch.put("index", keys.LEASE.key(gt, queue, offset), encode(lease))
    batch.put("index", keys.VISIBLE.key(gt, lease.visible_at, queue, offset), b"")
    low = batch.catalog.visible_low
    low[gt] = min(low.get(gt, 0), lease.visible_at)


def release(batch: Batch, gt: bytes, queue: int, offset: int) -> None:
    """Settle a message: its lease is gone and its group will not see it again."""
    batch.delete("index", keys.LEASE.key(gt, queue, offset))
    cursor = places.cursor(batch, gt, queue)
    if cursor is not None:
        cursor.leased -= 1
        store_cursor(batch, gt, queue, cursor)
    batch.counters.leased -= 1


class _Held(Struct):
    receipt: str
    topic: Topic
    gt: bytes
    queue: int
    offset: int
    lease: Lease


def named(batch: Batch, group: str, receipts: list[str]) -> Iterator[tuple[bytes, int, int]]:
    """Group and topic, queue and offset of the messages that these receipts are for, of topics that are known."""
    gid = batch.catalog.groups.get(group)
    for receipt in receipts:
        topic_name, queue, offset, _ = _parse(receipt)
        topic = batch.catalog.topics.get(topic_name)
        if topic is not None and gid is not None:
            yield keys.group_topic(gid, topic.id), queue, offset


def _held(batch: Batch, group: str, receipts: list[str]) -> tuple[list[_Held], list[str]]:
    """The leases that these receipts still hold, and the receipts that hold nothing any more."""
    held: list[_Held] = []
    stale: list[str] = []
    gid = batch.catalog.groups.get(group)
    for receipt in dict.fromkeys(receipts):  # one named twice is settled once
        topic_name, queue, offset, lease_id = _parse(receipt)
        topic = batch.catalog.topics.get(topic_name)
        found = None
        if topic is not None and gid is not None:
            gt = keys.group_topic(gid, topic.id)
            stored = batch.get("index", keys.LEASE.key(gt, queue, offset))
            lease = _decode_lease(stored) if stored else None
            if lease is not None and lease.id == lease_id:
                found = _Held(receipt, topic, gt, queue, offset, lease)
        if found is None:
            stale.append(receipt)
        else:
            held.append(found)
    return held, stale


def _parse(receipt: str) -> tuple[str, int, int, int]:
    try:
        topic, queue, offset, lease_id = receipt.split("/")
        numbers = int(queue), int(offset), int(lease_id)
    except ValueError:
        numbers = -1, -1, -1
        topic = ""
    if not (0 <= numbers[0] < 65536 and 0 <= numbers[1] < 2**63):
        raise InvalidRequest(f"receipts: {receipt[:200]!r} is not a receipt of this broker", field="receipts")
    return topic, *numbers


def _forget_visibility(batch: Batch, held: _Held) -> None:
    batch.delete("index", keys.VISIBLE.key(held.gt, held.lease.visible_at, held.queue, held.offset))


def _answer(stale: list[str]) -> OpResult | None:
    if not stale:
        return None
    detail = f"{len(stale)} receipts hold no lease: it passed to another consumer or was settled already"
    return OpResult(error="stale_lease", detail=detail, field="receipts", stale=stale)


def ack(batch: Batch, op: Ack) -> OpResult | None:
    held, stale = _held(batch, op.group, op.receipts)
    for one in held:
        _forget_visibility(batch, one)
        release(batch, one.gt, one.queue, one.offset)
    return _answer(stale)


def nack(batch: Batch, op: Nack, reader: QueueReader) -> OpResult | None:
    held, stale = _held(batch, op.group, op.receipts)
    settings = batch.settings
    given_up = [one for one in held if op.dead or one.lease.attempt >= settings.max_attempts]
    # All of them first: if one is damaged, nothing has changed.
    letters = {one.receipt: reader.message(one.topic, one.queue, one.offset) for one in given_up}
    for one in held:
        _forget_visibility(batch, one)
        if one.receipt in letters:
            release(batch, one.gt, one.queue, one.offset)
            message = letters[one.receipt]
            if message is not None:
                bury(batch, op.group, message, one.lease.attempt, op.reason or "given back too often")
            continue
        wait = settings.redelivery.wait_ms(one.lease.attempt) if op.delay_ms is None else op.delay_ms
        again = Lease(new_lease_id(), one.lease.attempt, batch.now + wait, one.lease.key)
        store_lease(batch, one.gt, one.queue, one.offset, again)
    return _answer(stale)


def renew(batch: Batch, op: Renew) -> OpResult | None:
    held, stale = _held(batch, op.group, op.receipts)
    for one in held:
        _forget_visibility(batch, one)
        one.lease.visible_at = batch.now + op.invisible_ms
        store_lease(batch, one.gt, one.queue, one.offset, one.lease)
    return _answer(stale)


# --- the dead-letter topic ---------------------------------------------------------------------------------------


def bury(batch: Batch, group: str, message: StoredMessage, attempts: int, reason: str) -> None:
    """Append the message to the group's dead-letter topic, with where it came from and why."""
    name = dead_letter_topic(group)
    topic = topics.ensure(batch, name)
    headers = {
        **(message.headers or {}),
        "dead-topic": message.topic,
        "dead-queue": str(message.queue),
        "dead-offset": str(message.offset),
        "dead-attempts": str(attempts),
        "dead-reason": reason,
    }
    letter = OutgoingMessage(
        name, message.value, message.key, headers, message.tag, born_at=message.born_at or batch.now
    )
    batch.log.add(topic, letter, message.gid, message.sequence)
    batch.events.append(Event("dead_letter", f"{group}:{message.topic}/{message.queue}/{message.offset}", reason))
