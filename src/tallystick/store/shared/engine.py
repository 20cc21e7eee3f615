"""The engine over any shared server: scans in pages, looks that try again, writes whose fate is always found out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tallystick.core.errors import StorageFailed, StorageFull
from tallystick.store.kv import keys as key_space
from tallystick.store.kv.engine import Area, Changes, EngineFailed, Found, Superseded, Wanted
from tallystick.store.shared.server import Fence, ServerAway, SharedServer
from tallystick.store.shared.time_limits import OUTAGE_SECONDS

TRIES = 3  # of a look or a write: the first may meet a connection that died long ago, the second a server's restart
# Of a scan: most want few rows, or one chunk of a queue; those that want more get larger and larger pages.
FIRST_ROWS, MOST_ROWS = 64, 4_096
FIRST_BYTES, MOST_BYTES = 256 * 1024, 4 * 1024 * 1024
GROWTH = 4

T = TypeVar("T")


class SharedEngine:
    """A store on a server, for the owner who claimed it with `epoch`."""

    remote = True

    def __init__(self, server: SharedServer, epoch: int, *, reopened: bool = False) -> None:
        """`reopened` says that units may have been written under this epoch before."""
        self._server, self._epoch = server, epoch
        self._unit = self._begin(reopened)

    @property
    def trips(self) -> int:
        return self._server.trips

    def _begin(self, reopened: bool) -> int:
        """The number of the first unit that is ours to write.

        An empty one is written first. A unit that was given up without knowing its fate may still be on its way; it
        has the number that is now used up, and can no longer come in behind what is about to be read. Under a new
        epoch there is no such unit, so a server without room is read all the same."""
        unit = self._ask(self._own_fence).unit
        try:
            begun = self._ask(lambda: self._server.apply(self._epoch, unit, Changes()))
        except StorageFull:
            if reopened:
                raise
            return unit
        if not begun:
            unit = self._ask(self._own_fence).unit - 1  # that one came in at last, or the answer to ours was lost
        return unit + 1

    def _own_fence(self) -> Fence:
        fence = self._server.fence()
        if fence is None:
            raise EngineFailed("the store is not there any more", may_pass=True)
        if fence.epoch != self._epoch:
            raise Superseded(f"the store has another owner since: {fence.owner}, with epoch {fence.epoch}")
        return fence

    # --- looks -----------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer to what may be asked again."""
        began = time.monotonic()
        for number in range(1, TRIES + 1):
            try:
                return question()
            except ServerAway as error:
                if number == TRIES or time.monotonic() - began > OUTAGE_SECONDS:
                    raise (StorageFull if error.full else StorageFailed)(away(error)) from error
                self._server.cut()
        raise AssertionError("the last try returns or raises")

    def get(self, area: Area, key: bytes) -> bytes | None:
        return self.look_up({area: (key,)})[area][key]

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        if not keys:
            return iter(())
        return map(self.look_up({area: keys})[area].__getitem__, keys)

    def look_up(self, wanted: Wanted) -> Found:
        return self._ask(lambda: self._server.look_up(wanted))

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for found in self._pages(area, start, end, backwards=False):
            yield from found

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for found in self._pages(area, start, end, backwards=True):
            yield from found

    def _pages(self, area: Area, start: bytes, end: bytes, backwards: bool) -> Iterator[list[tuple[bytes, bytes]]]:
        """Each shows what is durable when it is read."""
        rows, size = FIRST_ROWS, FIRST_BYTES
        while start < end:
            found = self._page(area, start, end, rows, size, backwards)
            yield found
            if len(found) < rows and sum(len(value) for _, value in found) < size:
                return
            last = found[-1][0]
            start, end = (start, last) if backwards else (key_space.behind(last), end)
            rows, size = min(rows * GROWTH, MOST_ROWS), min(size * GROWTH, MOST_BYTES)

    def _page(
        self, area: Area, start: bytes, end: bytes, rows: int, size: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        return self._ask(lambda: self._server.page(area, start, end, rows, size, backwards))

    # --- writes ----------------------------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """Returns when the unit is there, raises when it is not or nobody can tell: then `recover` finds out."""
        uncertain: ServerAway | None = None
        began = time.monotonic()
        for _ in range(TRIES):
            if uncertain is not None and time.monotonic() - began > OUTAGE_SECONDS:
                raise EngineFailed(away(uncertain), may_pass=True) from uncertain
            try:
                if uncertain is not None and self._is_there():
                    break
                if self._server.apply(self._epoch, self._unit, changes):
                    break
                if self._is_there() and uncertain is not None:
                    break  # the try before was carried out while we asked for it
                raise EngineFailed("the store is not where its owner left it", may_pass=True)
            except ServerAway as error:
                self._server.cut()
                if error.full and uncertain is None:  # it was refused, and no try before it may still be on its way
                    raise EngineFailed(f"the shared store is full: {error}", may_pass=True, full=True) from error
                uncertain = error
        else:
            raise EngineFailed(away(uncertain), may_pass=True) from uncertain
        self._unit += 1

    def _is_there(self) -> bool:
        """Whether the unit that is to be written has been."""
        return self._own_fence().unit == self._unit + 1

    def close(self) -> None:
        """May be opened again: the next question connects anew."""
        self._server.cut()


def away(error: ServerAway | None) -> str:
    """What is told of a server that does not answer, or refuses: its own words first, which say which of the two."""
    return f"{error} (the shared store cannot be used)"
