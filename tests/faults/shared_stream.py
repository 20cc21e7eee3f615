"""A stream of units into a shared store that is disturbed, and the comparison of what was told with what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cutting_proxy import Cut
from eventually import eventually
from tallystick.core.errors import StorageFailed
from tallystick.core.message import Chunk, OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Send
from tallystick.store.protocol import StoreOp
from tallystick.store.shared.opening import SharedStore

NOW = 1_700_000_000_000
TOPIC = "orders"

_decode = msgspec.msgpack.Decoder(Chunk).decode


class Stream:
    """Writes units of sends and of prepare + commit. What fails is found out and asked for again, as a client does."""

    def __init__(self, store: SharedStore, between: Callable[[], object] = lambda: None) -> None:
        self.store = store
        self._between = between
        self.asked: set[str] = set()
        self.told: set[str] = set()
        self.failures = 0

    def unit(self, name: str, size: int = 4, weight: int = 100) -> None:
        gids = [f"{name}-{number}" for number in range(size)]
        self.asked.update(gids)
        halves = [Prepare(f"{gid}-t", "shop", [_message(f"{gid}-t", weight)]) for gid in gids]
        self._until_told(halves)
        self.asked.update(f"{gid}-t" for gid in gids)
        self._until_told([*(Send([_message(gid, weight)], gid) for gid in gids), *(Commit(f"{gid}-t") for gid in gids)])
        self.told.update(gids, (f"{gid}-t" for gid in gids))

    def _until_told(self, ops: list[StoreOp]) -> None:
        while True:
            try:
                results = self.store.write(ops, NOW).results
            except StorageFailed:
                self.failures += 1
                self._between()
                eventually(lambda: self.store.recover() is not None, "the store works again")
                continue
            assert not [one for one in results if getattr(one, "error", None)], results
            return

    def check(self, store: SharedStore) -> None:
        """Sets, not counts: all that was told is there once, and nothing that nobody asked for."""
        there = stored(store)
        assert len(there) == len(set(there)), "a message is there twice"
        assert self.told <= set(there) <= self.asked
        assert store.counts().pending == len([gid for gid in self.asked - set(there) if store.transaction(gid)])


def stored(store: SharedStore) -> list[str]:
    found: list[str] = []
    view: Any = store.topic(TOPIC)
    for queue in range(view.queues if view else 0):
        offset = view.starts[queue]
        while offset < view.ends[queue]:
            piece = store.read(TOPIC, queue, offset, 1_000, 4 * 1024 * 1024)
            found += [gid for raw in piece.chunks for gid in _decode(raw).gids]
            offset = piece.next
    return found


def _message(gid: str, weight: int) -> OutgoingMessage:
    return OutgoingMessage(TOPIC, gid.encode().ljust(weight, b"."), key=gid)


class CutOnce:
    """Cuts around the n-th piece that a client sends, whichever connection it is on."""

    def __init__(self, number: int, how: Cut) -> None:
        self.left, self.how = number, how

    def __call__(self, _: bytes) -> Cut:
        self.left -= 1
        return self.how if self.left == -1 else "no"


def counted_cuts(store: SharedStore) -> list[int]:
    """Grows whenever the store's connections are cut, because the server could not be asked."""
    cuts: list[int] = []
    cut = store.server.cut

    def counting() -> None:
        cuts.append(1)
        cut()

    store.server.cut = counting  # type: ignore[method-assign]
    return cuts
