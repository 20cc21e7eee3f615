"""One unit of work: what a group commit changes, visible to its own later operations, to nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from tallystick.core.errors import NotFound
from tallystick.core.ops import Outcome
from tallystick.core.transaction import CheckState, Record, Resolved, Undecided
from tallystick.store.kv import keys
from tallystick.store.kv.appender import Appender
from tallystick.store.kv.call_records import CallsRecord, CallsState, decode_calls, decode_state
from tallystick.store.kv.catalog import Catalog, QueueId, Topic
from tallystick.store.kv.engine import AREAS, Area, Changes, Engine, Found, Wanted
from tallystick.store.protocol import Event, FailedCall, MadeTopic, StoreSettings

T = TypeVar("T")
Entries = Iterator[tuple[bytes, bytes]]
Look = tuple[Area, bytes]
# Of what a scan leads to. Each may be a transaction of a megabyte, and the one who scans may soon have enough.
FORESEEN_AT_ONCE = 64
NEVER = 2**62  # later than any time

Tombstone = tuple[Outcome, str, int, int, str, int, int, int]  # the fields of `Resolved`

encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Record).decode
decode_pending = msgspec.msgpack.Decoder(Undecided | Resolved).decode
_decode_check = msgspec.msgpack.Decoder(CheckState).decode


def by_area(looks: Iterable[Look]) -> dict[Area, list[bytes]]:
    found: dict[Area, list[bytes]] = {area: [] for area in AREAS}
    for area, key in looks:
        found[area].append(key)
    return found


class Batch:
    def __init__(self, engine: Engine, catalog: Catalog, settings: StoreSettings, now: int) -> None:
        self.engine = engine
        self.catalog = catalog
        self.counters = catalog.counters
        self.settings = settings
        self.now = now
        self.changes = Changes()
        self.events: list[Event] = []
        self.prepared = 0
        self.committed = 0
        self.called: set[int] = set()  # channels that calls were lined up in
        self.touched: set[int] = set()  # topics that were made or changed, or have other ends or starts, by id
        self.trimmed: dict[QueueId, int] = {}  # queues that now begin further on
        self.deleted: list[Topic] = []
        self.made: list[MadeTopic] = []
        self.outcomes: list[tuple[str, str, str]] = []  # gid, outcome, by
        self._tombstones: dict[Tombstone, bytes] = {}
        self._ahead: dict[Area, dict[bytes, bytes | None]] = {area: {} for area in AREAS}
        self.log = Appender(catalog, now)
        self._calls_states: dict[str, CallsState | None] = {}
        self._calls_records: dict[str, CallsRecord] = {}
        self._changed_calls: set[str] = set()

    # --- keys ------------------------------------------------------------------------------------------------

    def get(self, area: Area, key: bytes) -> bytes | None:
        for known in (self.changes.keys[area], self._ahead[area]):
            if key in known:
                return known[key]
        return self.engine.get(area, key)

    def get_many(self, area: Area, wanted: Sequence[bytes]) -> list[bytes | None]:
        """The values of all of them; those that are not known yet are found in one go through the keys."""
        missing = self._unknown(area, wanted)
        found = dict(zip(missing, self.engine.get_many(area, missing), strict=True))
        overlay, ahead = self.changes.keys[area], self._ahead[area]
        return [overlay[key] if key in overlay else found[key] if key in found else ahead[key] for key in wanted]

    def read_ahead(self, area: Area, wanted: Sequence[bytes]) -> None:
        """Read what is about to be asked for by `get`, together."""
        missing = self._unknown(area, wanted)
        self._ahead[area].update(zip(missing, self.engine.get_many(area, missing), strict=True))

    def foresee(self, wanted: Wanted) -> Found:
        """Have an engine that is far away fetch what is about to be asked for, in one round trip; one that is near is
        asked when it comes to that. Tells what is new."""
        if not self.engine.remote:
            return {}
        missing = {area: self._unknown(area, asked) for area, asked in wanted.items()}
        found = self.engine.look_up(missing) if any(missing.values()) else {}
        for area, values in found.items():
            self._ahead[area].update(values)
        return found

    def foreseeing(self, found: Entries, looks: Callable[[bytes], Iterable[Look]]) -> Entries:
        """What a scan finds, and what each of its keys leads to is foreseen, some of them at a time."""
        return self._in_pieces(found, lambda entry: looks(entry[0]), keep=True) if self.engine.remote else found

    def foreseeing_for(self, found: Iterable[T], looks: Callable[[T], Iterable[Look]]) -> Iterator[T]:
        """The same of anything that leads to keys, for somebody who walks over much: what was passed is not kept."""
        return self._in_pieces(iter(found), looks, keep=False) if self.engine.remote else iter(found)

    def _in_pieces(self, found: Iterator[T], looks: Callable[[T], Iterable[Look]], keep: bool) -> Iterator[T]:
        while piece := list(islice(found, FORESEEN_AT_ONCE)):
            new = self.foresee(by_area(look for one in piece for look in looks(one)))
            yield from piece
            for area, values in new.items() if not keep else ():
                for key in values:
                    self._ahead[area].pop(key, None)

    def _unknown(self, area: Area, asked: Iterable[bytes]) -> list[bytes]:
        overlay, ahead = self.changes.keys[area], self._ahead[area]
        return sorted({key for key in asked if key not in overlay and key not in ahead})

    def put(self, area: Area, key: bytes, value: bytes) -> None:
        self.changes.keys[area][key] = value

    def delete(self, area: Area, key: bytes) -> None:
        self.changes.keys[area][key] = None

    def delete_range(self, area: Area, start: bytes, end: bytes) -> None:
        overlay = self.changes.keys[area]
        for key in [key for key in overlay if start <= key < end]:
            del overlay[key]
        self.changes.ranges.append((area, start, end))

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end) as this batch sees them: the engine's, overlaid with the batch's own."""
        overlay = self.changes.keys[area]
        own = sorted(key for key in overlay if start <= key < end)
        place = 0
        for key, value in self.engine.scan(area, start, end):
            while place < len(own) and own[place] < key:
                mine = overlay.get(own[place])
                if mine is not None:
                    yield own[place], mine
                place += 1
            if place < len(own) and own[place] == key:
                continue  # the batch's own version comes with the next round of the inner loop
            yield key, value
        for key in own[place:]:
            mine = overlay.get(key)
            if mine is not None:
                yield key, mine

    # --- transactions ----------------------------------------------------------------------------------------

    def transaction(self, gid: str) -> Record | None:
        recent = self.catalog.recent.get(gid)
        if recent is not None:
            return recent
        stored = self.get("tx", keys.TRANSACTION.key(gid))
        return None if stored is None else decode_record(stored)

    def looks_at(self, gid: str, checked: bool) -> Iterator[Look]:
        """What `transaction` will look at; and `check_state`, if that is to be known as well."""
        recent = self.catalog.recent.get(gid)
        if recent is None:
            yield "tx", keys.TRANSACTION.key(gid)
        if checked and (recent is None or self.maybe_claimed(recent)):
            yield "index", keys.CHECK.key(gid)

    def bury(self, gid: str, tombstone: Tombstone) -> None:
        """Put a tombstone in the place of a transaction. Many of one unit are the same, and are encoded once."""
        encoded = self._tombstones.get(tombstone)
        if encoded is None:
            encoded = self._tombstones[tombstone] = encode(Resolved(*tombstone))
        self.changes.keys["tx"][keys.TRANSACTION.key(gid)] = encoded
        self.outcomes.append((gid, tombstone[0], tombstone[4]))

    def check_state(self, gid: str, record: Undecided) -> CheckState | None:
        """None while the transaction has never been claimed, which costs no read to know."""
        if not self.maybe_claimed(record):
            return None
        stored = self.get("index", keys.CHECK.key(gid))
        return None if stored is None else _decode_check(stored)

    def maybe_claimed(self, record: Undecided) -> bool:
        mark = self.catalog.marks.get(record.channel)
        return mark is not None and record.first_check_at <= mark.claimed

    def add_due(self, channel: int, at: int, gid: str, after: int = 0, outline: bytes = b"") -> None:
        """`after` is how long a transaction waits for its first check; `outline` says what it is, before any claim."""
        mark = self.catalog.mark(channel)
        self.catalog.enters_line(channel, at)
        if at < mark.low or after > mark.longest:
            mark.low, mark.longest = min(at, mark.low), max(after, mark.longest)
            self.put("index", keys.MARK.key(channel), encode(mark))
        self.put("index", keys.DUE.key(channel, at, gid), outline)

    def lower_mark(self, channel: int, at: int) -> None:
        mark = self.catalog.mark(channel)
        self.catalog.enters_line(channel, at)
        if at < mark.low:
            mark.low = at
            self.put("index", keys.MARK.key(channel), encode(mark))

    def raise_mark(self, channel: int, scanned_to: int, keep: bool) -> None:
        """Later scans of the channel's line begin here, past the keys of what is gone from it. A look that found
        nothing is not worth a write: the mark that is stored stays true, it is only further back."""
        mark = self.catalog.mark(channel)
        mark.low = max(mark.low, scanned_to)
        if keep:
            mark.claimed = max(mark.claimed, self.now)
            self.put("index", keys.MARK.key(channel), encode(mark))

    # --- calls -----------------------------------------------------------------------------------------------

    def calls_state(self, gid: str) -> CallsState | None:
        """Read once a batch: many calls of one transaction may be claimed or finished together."""
        if gid not in self._calls_states:
            stored = self.get("index", keys.CALLS_STATE.key(gid))
            self._calls_states[gid] = None if stored is None else decode_state(stored)
        return self._calls_states[gid]

    def keep_calls_state(self, gid: str, state: CallsState) -> None:
        """To be stored at the end of the batch."""
        self._calls_states[gid] = state
        self._changed_calls.add(gid)

    def calls_record(self, gid: str) -> CallsRecord:
        if gid not in self._calls_records:
            stored = self.get("tx", keys.CALLS.key(gid))
            if stored is None:
                raise NotFound(f"transaction {gid} has no calls here", field="gid")
            self._calls_records[gid] = decode_calls(stored)
        return self._calls_records[gid]

    def forget_calls(self, gid: str) -> None:
        self._calls_states[gid] = None
        self._changed_calls.discard(gid)
        self._calls_records.pop(gid, None)
        self.delete("index", keys.CALLS_STATE.key(gid))
        self.delete("tx", keys.CALLS.key(gid))

    def event(self, kind: str, gid: str, detail: str = "", call: FailedCall | None = None) -> None:
        """Something happened to a transaction that an operator may want to hear of."""
        self.events.append(Event(kind, gid, detail, gid, call))

    # --- the end of the unit ---------------------------------------------------------------------------------

    def finish(self) -> Changes:
        """Everything that only the end of the batch can know: offsets, the outcomes' audit record, counters."""
        self.log.seal(self.changes)
        self.touched.update(topic_id for topic_id, _ in self.log.touched)
        for gid in self._changed_calls:
            self.put("index", keys.CALLS_STATE.key(gid), encode(self._calls_states[gid]))
        if self.outcomes:
            self.counters.outcomes += 1
            self.put("index", keys.OUTCOMES.key(self.counters.outcomes), encode((self.now, self.outcomes)))
        if not self.changes.empty():
            self.put("index", keys.COUNTERS, encode(self.counters))
        return self.changes

    def appended(self) -> set[tuple[str, int]]:
        """The queues that have new messages, by the names of their topics."""
        known = self.catalog.topics_by_id
        return {(known[topic_id].name, queue) for topic_id, queue in self.log.touched if topic_id in known}

    def counted(self) -> Counter[str]:
        counted = Counter(event.kind for event in self.events)
        counted.update(
            prepared=self.prepared, committed=self.committed, rolled_back=len(self.outcomes) - self.committed
        )
        return counted
