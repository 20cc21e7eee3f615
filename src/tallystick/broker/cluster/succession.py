"""Since when each store has its owner, and how long it had none before: by the watcher's own clock alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tallystick.store.shared.registry import Holding


class Reign(NamedTuple):
    owner: str  # nobody, if empty
    epoch: int
    since_ms: int  # when it was first seen
    vacant_ms: int | None  # how long nobody was seen to own the store before; None if that was before the first look


class Succession:
    def __init__(self) -> None:
        self.reigns: dict[int, Reign] = {}  # by the numbers of the stores

    def saw(self, holdings: Iterable[Holding], at: int, seen_at: Callable[[str], int | None]) -> None:
        """`seen_at` tells when the last beat of a member was seen: from then on a dead owner counts for nobody."""
        for holding in holdings:
            before = self.reigns.get(holding.number)
            if before is None:
                self.reigns[holding.number] = Reign(holding.owner, holding.epoch, at, None)
            elif (before.owner, before.epoch) != (holding.owner, holding.epoch):
                vacant_since = seen_at(before.owner) if before.owner else before.since_ms
                vacant_ms = None if vacant_since is None or not holding.owner else at - vacant_since
                self.reigns[holding.number] = Reign(holding.owner, holding.epoch, at, vacant_ms)
