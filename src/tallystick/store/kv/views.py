"""What people and programs see of a store: transactions, groups, counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice

from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.transaction import Prepared, Resolved
from tallystick.core.wire import GroupView, QueueOffset, TransactionView
from tallystick.store.kv import keys, offsets, topics
from tallystick.store.kv.batch import Batch
from tallystick.store.kv.catalog import Topic
from tallystick.store.kv.cursors import decode_cursor
from tallystick.store.kv.reader import Reader
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


def _prepared(batch: Batch, after: str) -> Iterator[_Place]:
    start = bytes.fromhex(after) + b"\0" if after else b"d"
    for key, _ in batch.scan("index", start, b"e"):
        yield key.hex(), key[13:].decode()


def _parked(batch: Batch, after: str) -> Iterator[_Place]:
    start = bytes.fromhex(after) + b"\0" if after else b"P"
    for key, _ in batch.scan("index", start, b"Q"):
        yield key.hex(), key[1:].decode()


def _resolved(batch: Batch, after: str) -> Iterator[_Place]:
    """Newest first."""
    last, _, index = after.partition(".")
    end = bytes.fromhex(last) + b"\0" if last else b"p"
    for key, value in batch.engine.scan_back("index", b"o" + keys.u64(batch.counters.first_outcome), end):
        outcomes = decode_outcomes(value)[1]
        upto = int(index) if index and key.hex() == last else len(outcomes)
        for place in range(upto - 1, -1, -1):
            yield f"{key.hex()}.{place}", outcomes[place][0]


def _kept(batch: Batch, after: str) -> Iterator[_Place]:
    """Old ones with calls that are not done. Last: what is moved here while we read is met, not missed."""
    start = bytes.fromhex(after) + b"\0" if after else b"z"
    for key, _ in batch.scan("index", start, b"{"):
        yield key.hex(), key[9:].decode()


_Stage = Callable[[Batch, str], Iterator[_Place]]
_STAGES: dict[str, tuple[_Stage, ...]] = {
    "prepared": (_prepared,),
    "parked": (_parked,),
    "committed": (_resolved, _kept),
    "rolled_back": (_resolved,),
}
_ALL: tuple[_Stage, ...] = (_parked, _prepared, _resolved, _kept)
_FIRST_BYTE: dict[_Stage, str] = {
    stage: first.hex() for stage, first in ((_parked, b"P"), (_prepared, b"d"), (_resolved, b"o"), (_kept, b"z"))
}
_TOKEN = re.compile(r"([0-3]):((?:50|64|6f|7a)(?:[0-9a-f]{2})*(?:(?<=:6f.{16})\.[0-9]{1,9})?)\Z")


def _read_token(stages: tuple[_Stage, ...], after: str) -> tuple[int, str]:
    """Where an earlier page stopped. Anything else is refused: it could lead out of the list, to other keys."""
    found = _TOKEN.match(after)
    if found and int(found[1]) < len(stages) and found[2].startswith(_FIRST_BYTE[stages[int(found[1])]]):
        return int(found[1]), found[2]
    raise InvalidRequest(f"after: {after[:80]!r} is not the `next` of an earlier page", field="after")


def scan(
    batch: Batch, state: str | None, group: str | None, after: str | None, limit: int
) -> tuple[list[TransactionView], str | None]:
    """A page of transactions and where the next begins."""
    stages = _ALL if state is None else _STAGES[state]
    first, place = _read_token(stages, after) if after is not None else (0, "")
    found: list[TransactionView] = []
    for number in range(first, len(stages)):
        for examined, (token, gid) in enumerate(stages[number](batch, place)):
            view = transaction(batch, gid)
            if view and (state is None or view.state == state) and group in (None, view.group):
                found.append(view)
            if len(found) >= limit or examined >= EXAMINED_PER_PAGE:
                return found, f"{number}:{token}"
        place = ""
    return found, None


# --- groups ------------------------------------------------------------------------------------------------------


def groups(batch: Batch, reader: Reader, only: str | None) -> list[GroupView]:
    """Every (group, topic) pair that has a cursor or a stored offset."""
    views: list[GroupView] = []
    for name, group_id in sorted(batch.catalog.groups.items()):
        if only in (None, name):
            views.extend(group_view(batch, reader, name, topic) for topic in _topics_of(batch, group_id))
    if only is not None and only not in batch.catalog.groups:
        raise NotFound(f"there is no consumer group {only!r}", field="group")
    return views


def lags(batch: Batch, most: int) -> list[GroupView]:
    """The lag of the first `most` (group, topic) pairs."""
    pairs = ((name, topic) for name, id_ in sorted(batch.catalog.groups.items()) for topic in _topics_of(batch, id_))
    return [lag_view(batch, name, topic) for name, topic in islice(pairs, most)]


def _topics_of(batch: Batch, group_id: int) -> Iterator[Topic]:
    prefix = keys.u32(group_id)
    found: set[int] = set()
    for kind in (b"g", b"q"):
        for key, _ in batch.scan("index", kind + prefix, keys.after_prefix(kind + prefix)):
            found.add(keys.read_u32(key, 5))
    for topic_id in sorted(found):
        topic = batch.catalog.topics_by_id.get(topic_id)
        if topic is not None:
            yield topic


def group_view(batch: Batch, reader: Reader, name: str, topic: Topic) -> GroupView:
    view = lag_view(batch, name, topic)
    gt = keys.group_topic(batch.catalog.groups.get(name, 0), topic.id)
    for one in view.queues:
        _note_oldest(batch, reader, view, gt, topic, one.queue, one.offset)
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
    cursor = batch.get("index", b"g" + gt + keys.u16(queue))
    if cursor is not None:
        decoded = decode_cursor(cursor)
        return max(decoded.next, start), decoded.leased
    return max(offsets.stored(batch, gt, queue) or 0, start), 0


def _note_oldest(
    batch: Batch, reader: Reader, view: GroupView, gt: bytes, topic: Topic, queue: int, place: int
) -> None:
    prefix = b"l" + gt + keys.u16(queue)
    first = next(islice(batch.scan("index", prefix, keys.after_prefix(prefix)), 1), None)
    oldest = place if first is None else keys.read_u64(first[0], 11)
    at = reader.stored_at(topic, queue, oldest)
    if at is not None and (view.oldest_unsettled_at is None or at < view.oldest_unsettled_at):
        view.oldest_unsettled_at = at


def stored_offsets(batch: Batch, reader: Reader, group: str, topic_name: str) -> GroupView:
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
    for key, _ in islice(batch.scan("index", b"a", b"b"), 1):
        oldest.append(keys.read_u64(key, 1))
    for channel in batch.catalog.channels.values():
        if channel.via == "call":
            continue
        prefix = b"d" + keys.u32(channel.id)
        mark = batch.catalog.mark(channel.id)
        found = batch.scan("index", prefix + keys.u64(mark.low), keys.after_prefix(prefix))
        for key, _ in islice(found, 1):
            oldest.append(keys.read_u64(key, 5) - mark.longest)
    return min(oldest, default=None)
