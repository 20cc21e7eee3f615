"""A broker that does not know who we are, or does not let us: the log is told once, with what to do about it, and it is
tried again slowly, since somebody may give us another token, or more rights, meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tallystick.core.backoff import Backoff
from tallystick.core.errors import Forbidden, Unauthenticated

log = logging.getLogger(
    "tallystick.client.refusals"
)  # by itself: a command that ends with a refusal tells it only once

TURNED_AWAY = (Unauthenticated, Forbidden)
SLOWLY = Backoff(first_ms=1_000, cap_ms=15_000)


class TurnedAway(Exception):
    """The broker's refusal, of which the log has been told: to be tried again, slowly."""


class Refusals:
    """What one kind of background work was refused, at whichever of several places it is done. Each kind of refusal is
    told once, and again only after it was over: when the last place that refused has not, and nothing was refused in
    the last `lasting` seconds. What to do about it is in the refusal."""

    def __init__(self, what: str, lasting: float = 0.0, needed: Callable[[], bool] = lambda: True) -> None:
        """`needed` says whether this process needs the right at all; without a need, its lack is only noted."""
        self._what, self._lasting, self._needed = what, lasting, needed
        self._noted = False
        self._told: set[type[BaseException]] = set()
        self._at: set[str] = set()
        self._met_at = 0.0

    @contextmanager
    def told(self, place: str = "") -> Iterator[None]:
        """Around one try, from which no refusals come but the broker's. They are raised as `TurnedAway`."""
        try:
            yield
        except TURNED_AWAY as refusal:
            self.met(refusal, place)
            raise TurnedAway from refusal
        self.over(place)

    def heard(self, error: BaseException | None) -> bool:
        """The same for what was asked elsewhere, and has ended with an error or without. Whether it was a refusal."""
        if error is None:
            self.over()
        elif isinstance(error, TURNED_AWAY):
            self.met(error)
            return True
        return False

    def met(self, error: BaseException, place: str = "") -> None:
        self._met_at = time.monotonic()
        self._at.add(place)
        kind = Unauthenticated if isinstance(error, Unauthenticated) else Forbidden
        if kind is Forbidden and not self._needed():
            log.log(
                logging.DEBUG if self._noted else logging.INFO, "%s is not allowed, nor needed: %s", self._what, error
            )
            self._noted = True
            return
        if kind in self._told:
            log.debug("%s is still refused: %s", self._what, error)
            return
        self._told.add(kind)
        log.error("%s is refused, and tried again now and then: %s", self._what, error)

    def over(self, place: str = "") -> None:
        self._at.discard(place)
        if self._told and not self._at and time.monotonic() - self._met_at >= self._lasting:
            self._told.clear()
            log.info("%s is not refused any more", self._what)
