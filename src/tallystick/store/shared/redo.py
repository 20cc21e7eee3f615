"""Keys that nearly every unit rewrites, kept beside their table until the server moves them there.

PostgreSQL makes a new version of a row with every update, and a snapshot that is held elsewhere keeps all of them: who
looks for the row then walks over all versions. So a unit adds these values to its own new row, and only now and then
they replace the ones in the table. The owner keeps the newest values in memory, and reads see them over the table's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tallystick.store.kv.engine import Area, Changes
from tallystick.store.kv.keys import behind, rewritten

AREA: Area = "index"  # all such keys lie there
# After so many units, or so many values in them, the newest values are moved, which takes some 20 ms. A takeover moves
# what is left.
MOST_UNITS, MOST_VALUES = 4_000, 10_000

Rows = list[tuple[bytes, bytes]]


class Redo:
    """The values that the rows of units hold and the table does not, as far as this owner wrote them.

    The writer changes it; any thread reads it, always before it asks the server, so that a value that moves to the
    table meanwhile is found in one of the two."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._units = self._count = 0
        self._doubtful = False

    def split(self, changes: Changes) -> tuple[dict[bytes, bytes], Changes]:
        """The values for the unit's row, and the changes that go to the tables."""
        kept: dict[bytes, bytes] = {}
        rest = Changes()
        rest.ranges = changes.ranges
        rest.keys = {**changes.keys, AREA: {}}
        for key, value in changes.keys[AREA].items():
            if value is not None and rewritten(key):
                kept[key] = value
            else:
                rest.keys[AREA][key] = value
        return kept, rest

    def must_move_before(self, changes: Changes) -> bool:
        """Whether these changes delete a key that is held here, which a later move would bring back; or it is time."""
        if self._doubtful or self._units >= MOST_UNITS or self._count >= MOST_VALUES:
            return True
        held = self._values
        ranges = [(start, end) for area, start, end in changes.ranges if area == AREA]
        return any(value is None and key in held for key, value in changes.keys[AREA].items()) or any(
            start <= key < end for start, end in ranges for key in held
        )

    def written(self, values: dict[bytes, bytes]) -> None:
        self._values.update(values)
        self._units += 1
        self._count += len(values)

    def hold(self, units: Sequence[dict[bytes, bytes]]) -> None:
        """These units, in order, are all whose values the table does not have."""
        values: dict[bytes, bytes] = {}
        for kept in units:
            values |= kept
        self._values = values
        self._units, self._count, self._doubtful = len(units), sum(map(len, units)), False

    def in_doubt(self) -> None:
        """The outcome of a unit is unknown: the next one comes after a move."""
        self._doubtful = True

    def moved(self) -> None:
        """The table has everything. Readers may still hold the old map, so it is replaced and not emptied."""
        self._values = {}
        self._units, self._count, self._doubtful = 0, 0, False

    # --- reads -----------------------------------------------------------------------------------------------

    def known(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        held = self._values
        return {key: held[key] for key in keys if key in held} if held else {}

    def page(
        self,
        read: Callable[[bytes, bytes], Rows],
        start: bytes,
        end: bytes,
        limit: int,
        max_bytes: int,
        backwards: bool,
    ) -> Rows:
        """A page of the table as `read` gives it, with the values that are held here in their places."""
        held = [item for item in list(self._values.items()) if start <= item[0] < end]
        if not held:
            return read(start, end)
        page: Rows = []
        while True:
            rows = read(start, end)
            ended = len(rows) < limit and _size(rows) < max_bytes
            first, last = start, end  # what these rows cover
            if not ended:
                first, last = (rows[-1][0], end) if backwards else (start, behind(rows[-1][0]))
            seen = dict(rows) | {key: value for key, value in held if first <= key < last}
            page = _cut(page + sorted(seen.items(), reverse=backwards), limit, max_bytes)
            if ended or len(page) >= limit or _size(page) >= max_bytes:
                return page
            start, end = (start, first) if backwards else (last, end)


def _size(rows: Rows) -> int:
    return sum(len(value) for _, value in rows)


def _cut(rows: Rows, limit: int, max_bytes: int) -> Rows:
    before = 0
    for count, (_, value) in enumerate(rows):
        if count >= limit or before >= max_bytes:
            return rows[:count]
        before += len(value)
    return rows
