"""A broker that does not know who we are, or does not let us: the log is told once, with what to do about it, and it is
tried again slowly, since somebody may give us another token, or more rights, meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.core.backoff import Backoff
from tallystick.core.errors import Forbidden, Unauthenticated

log = logging.getLogger("tallystick.client")

TURNED_AWAY = (Unauthenticated, Forbidden)
SLOWLY = Backoff(first_ms=1_000, cap_ms=15_000)
ADVICE = {
    Unauthenticated: "put a token that the broker knows where ours is",
    Forbidden: "have an admin give our token the right, or use another token",
}


class TurnedAway(Exception):
    """The broker's refusal, of which the log has been told: to be tried again, slowly."""


class Refusals:
    """What one piece of background work was refused. Each kind of refusal is told once, and again only after it was
    over: when a try has worked, and nothing was refused in the last `lasting` seconds."""

    def __init__(self, what: str, lasting: float = 0.0) -> None:
        self._what, self._lasting = what, lasting
        self._told: type[BaseException] | None = None
        self._met_at = 0.0

    @contextmanager
    def told(self) -> Iterator[None]:
        """Around one try, from which no refusals come but the broker's. They are raised as `TurnedAway`."""
        try:
            yield
        except TURNED_AWAY as refusal:
            self.met(refusal)
            raise TurnedAway from refusal
        self.over()

    def heard(self, error: BaseException | None) -> bool:
        """The same for what was asked elsewhere, and has ended with an error or without. Whether it was a refusal."""
        if error is None:
            self.over()
        elif isinstance(error, TURNED_AWAY):
            self.met(error)
            return True
        return False

    def met(self, error: BaseException) -> None:
        self._met_at = time.monotonic()
        kind = Unauthenticated if isinstance(error, Unauthenticated) else Forbidden
        if self._told is kind:
            log.debug("%s is still refused: %s", self._what, error)
            return
        self._told = kind
        log.error("%s is refused, and tried again now and then; %s: %s", self._what, ADVICE[kind], error)

    def over(self) -> None:
        if self._told is not None and time.monotonic() - self._met_at >= self._lasting:
            self._told = None
            log.info("%s is not refused any more", self._what)
