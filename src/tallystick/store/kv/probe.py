"""What a store writes to find out whether its engine takes writes again."""

from __future__ import annotations

import os

from tallystick.store.kv import keys
from tallystick.store.kv.engine import Area, Changes

USUAL_AREAS: tuple[Area, ...] = ("tx", "log", "index")  # of a unit with messages
USUAL_BYTES = 1_024
LEAST_BYTES = 64 * 1024  # in each area: the free space of a single page or row says little


def probe_like(refused: Changes | None) -> tuple[Changes, Changes]:
    """A unit that needs as much room as the refused one, in the same areas and in values of the same size, and the
    unit that deletes it again. The values are random, because an engine may compress others."""
    written, deleted = Changes(), Changes()
    for area, sizes in _sizes(refused).items():
        for number, size in enumerate(sizes):
            key = keys.PROBE + keys.u32(number)
            written.keys[area][key] = os.urandom(size)
            deleted.keys[area][key] = None
    return written, deleted


def _sizes(refused: Changes | None) -> dict[Area, list[int]]:
    """The sizes of the values to write in each area."""
    found: dict[Area, list[int]] = {}
    for area, changed in () if refused is None else refused.keys.items():
        if sizes := [len(value) for value in changed.values() if value is not None]:
            found[area] = _enough(sizes)
    return found or {area: _enough([USUAL_BYTES]) for area in USUAL_AREAS}


def _enough(sizes: list[int]) -> list[int]:
    """These sizes, repeated until they sum up to enough."""
    if (total := sum(sizes)) >= LEAST_BYTES:
        return sizes
    times = LEAST_BYTES // max(total, len(sizes) * 64) + 1  # the empty values of an index take room as well
    return sizes * times
