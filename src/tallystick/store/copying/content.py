"""What a store holds, as a copy carries it over: all keys of all areas, in their order, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct as Packer

from msgspec import Struct

from tallystick.store.kv import keys
from tallystick.store.kv.catalog import Catalog
from tallystick.store.kv.engine import AREAS, Area, Changes, Engine

EVERYTHING: keys.Range = (b"", b"\xff" * 16)  # every key begins with a letter, or with numbers of fewer bytes
# Of a page, and so of the memory that a copy takes, and of the unit that a page is written in.
PAGE_KEYS = 2_000
PAGE_BYTES = 2 * 1024 * 1024

NAMED = 5  # topics, where it is told what a store holds

_OF_THE_PLACE = frozenset({keys.STORE_ID, keys.HALF_COPIED})  # a directory keeps these in a file
_HEAD = Packer(">BII")


class Page(Struct):
    area: Area
    rows: dict[bytes, bytes]

    def changes(self) -> Changes:
        """What writes it."""
        made = Changes()
        made.keys[self.area].update(self.rows)
        return made


class Tally(Struct, frozen=True):
    """How many keys there are, and a checksum of all of them and of their values."""

    keys: int
    checksum: str


class Tallying:
    """A tally in the making. It does not depend on how the keys were divided into pages."""

    def __init__(self) -> None:
        self.keys = 0
        self._sum = blake2b(digest_size=16)

    def add(self, page: Page) -> None:
        area = AREAS.index(page.area)
        self.keys += len(page.rows)
        for key, value in page.rows.items():
            self._sum.update(_HEAD.pack(area, len(key), len(value)) + key)
            self._sum.update(value)

    def tally(self) -> Tally:
        return Tally(self.keys, self._sum.hexdigest())


def pages(engine: Engine) -> Iterator[Page]:
    """All that the engine holds, but for what belongs to the place and not to the store."""
    for area in AREAS:
        yield from _paged(area, engine.scan(area, *EVERYTHING))


def _paged(area: Area, found: Iterable[tuple[bytes, bytes]]) -> Iterator[Page]:
    rows: dict[bytes, bytes] = {}
    size = 0
    for key, value in found:
        if area == "index" and key in _OF_THE_PLACE:
            continue
        rows[key] = value
        size += len(key) + len(value)
        if len(rows) >= PAGE_KEYS or size >= PAGE_BYTES:
            yield Page(area, rows)
            rows, size = {}, 0
    if rows:
        yield Page(area, rows)


def holds_nothing(engine: Engine) -> bool:
    """But for counters, which a store has that was only opened."""
    return all(key == keys.COUNTERS for page in pages(engine) for key in page.rows)


def messages_in(engine: Engine) -> int:
    """That can be read."""
    catalog = Catalog(engine)
    ends = {queue: end for queue, end in catalog.ends.items() if queue[0] in catalog.topics_by_id}
    return sum(end - catalog.starts.get(queue, 0) for queue, end in ends.items())


def told_content(engine: Engine) -> str:
    """What a store holds, for people."""
    half = engine.get("index", keys.HALF_COPIED)
    if half is not None:
        return f"half a copy of {half.decode()}"
    topics = sorted(Catalog(engine).topics)
    named = f" ({', '.join(topics[:NAMED])}{', ...' if len(topics) > NAMED else ''})" if topics else ""
    transactions = "some" if any(True for _ in engine.scan("tx", *keys.TRANSACTION.all)) else "none"
    return f"topics: {len(topics)}{named}, messages: {messages_in(engine)}, transactions: {transactions}"
