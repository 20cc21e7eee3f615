"""What people and programs see of a store: transactions, groups, counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.transaction import Prepared, Resolved
from tallystick.core.wire import GroupView, QueueOffset, TransactionView
from tallystick.store.kv import keys, places, topics
from tallystick.store.kv.batch import Batch, Look
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.reader import QueueReader
from tallystick.store.kv.tombstones import decode_outcomes
from tallystick.store.protocol import Counts

EXAMINED_PER_PAGE = 10_000  # a page that filters much away ends early instead of holding the writer up


def transaction(batch: Batch, gid: str) -> TransactionView | None:
    record = batch.transaction(gid)
    if record is None:
        return None
    if isinstance(record, Resolved):
        return TransactionView(
            gid,
            record.outcome,
            record.group,
            record.messages,
            record.created_at,
            record.resolved_at,
            record.by,
            checks=record.checks,
            calls=record.calls,
        )
    return _pending(batch, gid, record)


def _pending(batch: Batch, gid: str, record: Prepared) -> TransactionView:
    state = batch.check_state(gid, record)
    view = TransactionView(
        gid,
        "prepared",
        record.group,
        len(record.messages),
        record.created_at,
        check_via=record.via,
        check_target=record.target,
        next_check_at=record.first_check_at,
        calls=len(record.pushed.calls) if record.pushed else 0,
    )
    if state is not None:
        view.checks, view.next_check_at, view.last_error = state.checks, state.next_at, state.last_error
        if state.parked:
            view.state, view.next_check_at = "parked", 0
    return view


# --- lists -------------------------------------------------------------------------------------------------------

_Place = tuple[str, str]  # where a page may go on, gid


def _listed(batch: Batch, kind: keys.Kind, after: str) -> Iterator[_Place]:
    low, high = kind.all
    for key, _ in batch.scan("index", keys.behind(bytes.fromhex(after)) if after else low, high):
        yield key.hex(), kind.name(key)


def _resolved(batch: Batch, after: str) -> Iterator[_Place]:
    """Newest first."""
    last, _, index = after.partition(".")
    low, high = keys.OUTCOMES.since(batch.counters.first_outcome)
    for key, value in batch.engine.scan_back("index", low, keys.behind(bytes.fromhex(last)) if last else high):
        outcomes = decode_outcomes(value)[1]
        upto = int(index) if index and key.hex() == last else len(outcomes)
        for place in range(upto - 1, -1, -1):
            yield f"{key.hex()}.{place}", outcomes[place][0]


# Where transactions of a state are found. What is kept for its calls comes last: what is moved there while we read is
# met, not missed.
_Stages = tuple[keys.Kind, ...]
_STAGES: dict[str, _Stages] = {
    "prepared": (keys.DUE,),
    "parked": (keys.PARKED,),
    "committed": (keys.OUTCOMES, keys.KEPT),
    "rolled_back": (keys.OUTCOMES,),
}
_ALL: _Stages = (keys.PARKED, keys.DUE, keys.OUTCOMES, keys.KEPT)
_TOKEN = re.compile(r"([0-3]):((?:[0-9a-f]{2})+)(\.[0-9]{1,9})?\Z")


def _read_token(stages: _Stages, after: str) -> tuple[int, str]:
    """Where an earlier page stopped. Anything else is refused: it could lead out of the list, to other keys."""
    found = _TOKEN.match(after)
    if found and int(found[1]) < len(stages):
        kind = stages[int(found[1])]
        if kind.holds(bytes.fromhex(found[2])) and (found[3] is None or kind is keys.OUTCOMES):
            return int(found[1]), found[2] + (found[3] or "")
    raise InvalidRequest(f"after: {after[:80]!r} is not the `next` of an earlier page", field="after")


def _places(batch: Batch, kind: keys.Kind, after: str) -> Iterator[_Place]:
    return _resolved(batch, after) if kind is keys.OUTCOMES else _listed(batch, kind, after)


def scan(
    batch: Batch, state: str | None, group: str | None, after: str | None, limit: int
) -> tuple[list[TransactionView], str | None]:
    """A page of transactions and where the next begins."""
    stages = _ALL if state is None else _STAGES[state]
    first, place = _read_token(stages, after) if after is not None else (0, "")
    found: list[TransactionView] = []
    for number in range(first, len(stages)):
        named = _places(batch, stages[number], place)
        foreseen = batch.foreseeing_for(named, lambda one: batch.looks_at(one[1], checked=True))
        for examined, (token, gid) in enumerate(foreseen):
            view = transaction(batch, gid)
            if view and (state is None or view.state == state) and group in (None, view.group):
                found.append(view)
            if len(found) >= limit or examined >= EXAMINED_PER_PAGE:
                return found, f"{number}:{token}"
        place = ""
    return found, None


# --- groups ------------------------------------------------------------------------------------------------------


def groups(batch: Batch, reader: QueueReader, only: str | None) -> list[GroupView]:
    """Every (group, topic) pair that has a cursor or a stored offset."""
    names = [name for name in sorted(batch.catalog.groups) if only in (None, name)]
    views = [group_view(batch, reader, *pair) for pair in _pairs(batch, names)]
    if only is not None and only not in batch.catalog.groups:
        raise NotFound(f"there is no consumer group {only!r}", field="group")
    return views


def lags(batch: Batch, most: int) -> list[GroupView]:
    """The lag of the first `most` (group, topic) pairs."""
    return [lag_view(batch, *pair) for pair in islice(_pairs(batch, sorted(batch.catalog.groups)), most)]


def _pairs(batch: Batch, names: list[str]) -> Iterator[tuple[str, Topic]]:
    """The groups with their topics; where each stands there is foreseen."""
    known = batch.catalog.groups

    def looks(pair: tuple[str, Topic]) -> Iterator[Look]:
        gt = keys.group_topic(known[pair[0]], pair[1].id)
        for queue in range(pair[1].queues):
            yield "index", keys.CURSOR.key(gt, queue)
            yield "index", keys.STORED.key(gt, queue)

    pairs = ((name, topic) for name in names for topic in _topics_of(batch, known[name]))
    return batch.foreseeing_for(pairs, looks)


def _topics_of(batch: Batch, group_id: int) -> Iterator[Topic]:
    found: set[int] = set()
    for kind in (keys.CURSOR, keys.STORED):
        found.update(kind.topic_id(key) for key, _ in batch.scan("index", *kind.of_group(group_id)))
    for topic_id in sorted(found):
        topic = batch.catalog.topics_by_id.get(topic_id)
        if topic is not None:
            yield topic


def group_view(batch: Batch, reader: QueueReader, name: str, topic: Topic) -> GroupView:
    view = lag_view(batch, name, topic)
    gt = keys.group_topic(batch.catalog.groups.get(name, 0), topic.id)
    for one in view.queues:
        if one.lag:
            _note_oldest(batch, reader, view, gt, topic, one)
    return view


def lag_view(batch: Batch, name: str, topic: Topic) -> GroupView:
    """Without the age of what is unsettled, which costs a read of a chunk for each queue."""
    gt = keys.group_topic(batch.catalog.groups.get(name, 0), topic.id)
    view = GroupView(name, topic.name, [])
    for queue in range(topic.queues):
        start = batch.catalog.starts.get((topic.id, queue), 0)
        end = batch.catalog.ends.get((topic.id, queue), 0)
        place, leased = _place(batch, gt, queue, start)
        view.queues.append(QueueOffset(queue, place, start, end, end - place + leased))
        view.leased += leased
    view.lag = sum(one.lag for one in view.queues)
    return view


def _place(batch: Batch, gt: bytes, queue: int, start: int) -> tuple[int, int]:
    """Where the group stands in a queue, and how many before that are under lease."""
    cursor = places.cursor(batch, gt, queue)
    if cursor is not None:
        return max(cursor.next, start), cursor.leased
    return max(places.offset(batch, gt, queue) or 0, start), 0


def _note_oldest(batch: Batch, reader: QueueReader, view: GroupView, gt: bytes, topic: Topic, one: QueueOffset) -> None:
    leased = one.lag > one.end - one.offset
    first = next(batch.scan("index", *keys.LEASE.of_queue(gt, one.queue)), None) if leased else None
    oldest = one.offset if first is None else keys.LEASE.offset(first[0])
    at = reader.stored_at(topic, one.queue, oldest)
    if at is not None and (view.oldest_unsettled_at is None or at < view.oldest_unsettled_at):
        view.oldest_unsettled_at = at


def stored_offsets(batch: Batch, reader: QueueReader, group: str, topic_name: str) -> GroupView:
    return group_view(batch, reader, group, topics.known(batch.catalog, topic_name))


def counts(batch: Batch) -> Counts:
    counters = batch.counters
    return Counts(
        counters.pending,
        counters.parked,
        counters.parts,
        counters.leased,
        _oldest_pending(batch),
        counters.calls_waiting,
        counters.calls_parked,
    )


def _oldest_pending(batch: Batch) -> int | None:
    """No pending transaction is older than this.

    Those checked before have an index by age. The others are in line for their first check, in order of its time,
    which is their creation plus a delay: the head of a line less the longest delay bounds them all.
    """
    oldest: list[int] = []
    for key, _ in islice(batch.scan("index", *keys.AGED.all), 1):
        oldest.append(keys.AGED.at(key))
    for channel in batch.catalog.channels.values():
        if channel.via == "call":
            continue
        mark = batch.catalog.mark(channel.id)
        for key, _ in islice(batch.scan("index", *keys.DUE.since(channel.id, mark.low)), 1):
            oldest.append(keys.DUE.at(key) - mark.longest)
            # The next look does not walk again over what a bulk check-back has taken out of the line.
            batch.raise_mark(channel.id, keys.DUE.at(key), keep=False)
    return min(oldest, default=None)
