"""The copy itself: page after page, then all of it read back from where it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from tallystick.core.errors import DamagedData
from tallystick.store.copying.content import Tally, Tallying, pages
from tallystick.store.kv.engine import Engine

Told = Callable[[int], None]
"""Is told how many keys have been copied, or read back, so far."""


class CopySource(Protocol):
    """A store that nobody else changes for as long as it is open."""

    name: str
    store_id: str
    engine: Engine

    def check(self) -> None:
        """Raises if somebody else may have changed it after all."""

    def close(self) -> None: ...


class CopyTarget(Protocol):
    """A place for a store, ours alone. From `begin` to `finish` it is marked as half a copy, and nobody opens it."""

    name: str

    def begin(self, store_id: str, source: str) -> Engine:
        """Refuses a place that holds something, unless it may be overwritten; then nothing of that is left."""

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Copied(Struct, frozen=True):
    store: str
    copied: Tally
    read_back: Tally


def copy(source: CopySource, target: CopyTarget, on_copied: Told, on_read_back: Told) -> Copied:
    source.check()  # it would not be ours any more if the target were the same store
    engine = target.begin(source.store_id, source.name)
    copied = Tallying()
    for page in pages(source.engine):
        engine.write(page.changes())
        copied.add(page)
        on_copied(copied.keys)
    source.check()
    read_back = Tallying()
    for page in pages(engine):
        read_back.add(page)
        on_read_back(read_back.keys)
    made = Copied(source.store_id, copied.tally(), read_back.tally())
    if made.copied != made.read_back:
        raise DamagedData(
            f"{target.name} does not hold the {_words(made.copied)} that were written to it, but "
            f"{_words(made.read_back)}; it stays marked as half a copy, and {source.name} is as it was"
        )
    target.finish()
    return made


def _words(tally: Tally) -> str:
    return f"{tally.keys} keys with the checksum {tally.checksum}"
