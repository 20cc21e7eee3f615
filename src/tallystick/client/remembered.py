"""Outcomes of recent checks: they are final, so a second question costs nothing."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from tallystick.core.ops import Outcome


class RememberedOutcomes:
    """The last `most` outcomes, by gid; safe to use from several threads."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self._lock = Lock()

    def get(self, gid: str) -> Outcome | None:
        with self._lock:
            outcome = self._outcomes.get(gid)
            if outcome is not None:
                self._outcomes.move_to_end(gid)
            return outcome

    def put(self, gid: str, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes[gid] = outcome
            self._outcomes.move_to_end(gid)
            if len(self._outcomes) > self._most:
                self._outcomes.popitem(last=False)
