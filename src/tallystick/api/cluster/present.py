"""Which stores answer just now, as far as this broker has seen."""

from __future__ import annotations

import time

from tallystick.api.cluster.owners import Owners
from tallystick.core.errors import TallystickError

LEFT_ALONE_SECONDS = 2.0
SOON_SECONDS = 1.0  # within which a store answers that is asked for nothing that takes long


def is_away(error: TallystickError) -> bool:
    """Whether it is the store, and not what it was asked."""
    return error.retryable and error.status >= 500


class Present:
    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._missed: dict[str, float] = {}
        self._late: dict[str, float] = {}

    def late(self, store: str) -> None:
        """It has kept a request waiting. Requests that any store can serve go to others for a moment."""
        self._late[store] = time.monotonic() + LEFT_ALONE_SECONDS

    def miss(self, store: str) -> None:
        """It did not answer: nobody needs to find that out again at once."""
        self._missed[store] = time.monotonic() + LEFT_ALONE_SECONDS

    def __contains__(self, store: str) -> bool:
        return self._here(store) or self._elsewhere(store)

    def _here(self, store: str) -> bool:
        door = self._owners.door(store)
        return door is not None and door.not_ready() is None and not self._is_late(store)

    def _elsewhere(self, store: str) -> bool:
        """Another broker has it, and nobody has asked for it in vain a moment ago."""
        missed = self._missed.get(store, 0.0) >= time.monotonic()
        return self._owners.answering(store) and not missed and not self._is_late(store)

    def _is_late(self, store: str) -> bool:
        return bool(self._late) and self._late.get(store, 0.0) >= time.monotonic()

    def stores(self) -> list[str]:
        """All of them, if none seems to be there."""
        everyone = self._owners.stores()
        return [store for store in everyone if store in self] or everyone

    def nearest(self) -> list[str]:
        """Our own, which cost no hop; those of others, if none of ours answers."""
        return [store for store in self._owners.own() if self._here(store)] or self.stores()
