"""A store of each kind under test, with its time in hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shared_stores
from shared_stores import SHARED, SHARED_FULL
from tallystick.core.message import Chunk, OutgoingMessage, StoredMessage, messages_of
from tallystick.core.ops import OpResult, Prepare
from tallystick.core.wire import Delivery, TransactionView
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine, open_memory
from tallystick.store.protocol import Claimed, Progress, Receive, Received, Result, StoreOp, StoreSettings, Written
from tallystick.store.rocksdb import open_rocksdb

ENGINES = ("memory", "rocksdb", *SHARED_FULL)
DURABLE_FIRST = ("rocksdb", pytest.param("memory", marks=pytest.mark.full), *SHARED_FULL)
START = 1_700_000_000_000

_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


def message(value: str = "v", topic: str = "orders", **rest: Any) -> OutgoingMessage:
    return OutgoingMessage(topic, value.encode(), **rest)


def prepare(gid: str, *values: str, group: str = "shop", **rest: Any) -> Prepare:
    """A prepare whose messages default to one that carries the gid."""
    return Prepare(gid, group, [message(value) for value in values or (gid,)], **rest)


def _nothing() -> Written:
    return Written([], set(), set(), [], Counter())


class Place:
    """A store that can be closed and opened again; `now` moves only when told to."""

    def __init__(self, open_store: Callable[[StoreSettings], KvStore], settings: StoreSettings) -> None:
        self._open, self._settings = open_store, settings
        self.now = START
        self.store = open_store(settings)
        self.totals: Counter[str] = Counter()
        self.made = _nothing()  # all that was written since somebody took it

    def reopen(self, settings: StoreSettings | None = None) -> None:
        self.store.close()
        self._settings = settings or self._settings
        self.store = self._open(self._settings)

    @property
    def settings(self) -> StoreSettings:
        return self._settings

    def wait(self, ms: int) -> None:
        self.now += ms

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, *ops: StoreOp) -> list[Result]:
        """Several operations as one unit."""
        written = self.store.write(list(ops), self.now)
        self.totals += written.counted
        self.made.appended |= written.appended
        self.made.called |= written.called
        self.made.events += written.events
        return written.results

    def take_made(self) -> Written:
        """What was made since the last call, to be told to those who wait."""
        made, self.made = self.made, _nothing()
        return made

    def do(self, op: StoreOp) -> Any:
        """One operation, which must not be refused."""
        (result,) = self.write(op)
        assert not (isinstance(result, OpResult) and result.error), result
        return result

    def refused(self, op: StoreOp) -> OpResult:
        """One operation, which must be refused."""
        (result,) = self.write(op)
        assert isinstance(result, OpResult), result
        assert result.error, result
        assert result.detail
        return result

    def receive(self, group: str = "g", topic: str = "orders", **rest: Any) -> list[Delivery]:
        result = self.do(Receive(group, topic, rest.pop("max", 100), rest.pop("invisible_ms", 30_000), **rest))
        assert isinstance(result, Received)
        return result.deliveries

    def claim(self, op: StoreOp) -> list[str]:
        result = self.do(op)
        assert isinstance(result, Claimed)
        return [claim.request.gid for claim in result.claims]

    def sweep(self, op: StoreOp) -> Progress:
        result = self.do(op)
        assert isinstance(result, Progress)
        return result

    # --- seeing --------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue: int) -> list[StoredMessage]:
        """Everything visible in a queue, from its first kept offset on, read in small pieces."""
        view = self.store.topic(topic)
        assert view is not None
        offset, found = view.starts[queue], []
        while offset < view.ends[queue]:
            piece = self.store.read(topic, queue, offset, 10, 2_000)
            for raw in piece.chunks:
                found += messages_of(_decode_chunk(raw), topic, queue, offset)
            assert piece.next > offset
            offset = piece.next
        return found

    def messages(self, topic: str = "orders") -> list[StoredMessage]:
        view = self.store.topic(topic)
        return [] if view is None else [one for queue in range(view.queues) for one in self.queue(topic, queue)]

    def values(self, topic: str = "orders") -> list[str]:
        return sorted(one.value.decode() for one in self.messages(topic))

    def view(self, gid: str) -> TransactionView:
        found = self.store.transaction(gid)
        assert found is not None, f"{gid} is not known"
        return found

    def channel(self, name: str = "shop", via: str = "group") -> int:
        (found,) = [one.id for one in self.store.channels() if (one.via, one.name) == (via, name)]
        return found


def open_place(engine: str, directory: Path, settings: StoreSettings) -> Place:
    if engine == "memory":
        kept = MemoryEngine()
        return Place(lambda known: open_memory(known, kept), settings)
    if engine in shared_stores.FIXTURES:
        return Place(shared_stores.opener(shared_stores.url_at(engine)), settings)
    return Place(lambda known: open_rocksdb(directory / "data", known), settings)


MakePlace = Callable[..., Place]


@pytest.fixture(params=ENGINES)
def make_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakePlace]:
    """Makes one place with settings of the test's choice."""
    yield from _making(request, tmp_path)


@pytest.fixture(params=("memory", "rocksdb", *SHARED))
def make_place_shared_too(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakePlace]:
    """In the short run as well on a server that brokers share."""
    yield from _making(request, tmp_path)


def _making(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakePlace]:
    shared_stores.start(request.param, request)
    made: list[Place] = []

    def make(**settings: Any) -> Place:
        made.append(open_place(request.param, tmp_path / str(len(made)), StoreSettings(**settings)))
        return made[-1]

    yield make
    for place in made:
        place.store.close()


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place()
