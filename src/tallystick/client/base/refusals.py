"""A broker that does not know who we are, or does not let us: the log is told once, with what to do about it, and it is
tried again slowly, since somebody may give us another token, or more rights, meanwhile."""

from __future__ import annotations

import logging

from tallystick.core.backoff import Backoff
from tallystick.core.errors import Forbidden, Unauthenticated

log = logging.getLogger("tallystick.client")

TURNED_AWAY = (Unauthenticated, Forbidden)
SLOWLY = Backoff(first_ms=1_000, cap_ms=15_000)
ADVICE = {
    Unauthenticated: "put a token that the broker knows where ours is",
    Forbidden: "have an admin give our token the right, or use another token",
}


class Refusals:
    """What one piece of background work was refused. Each kind of refusal is told once, and again only after it was
    over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: type[BaseException] | None = None

    def met(self, error: BaseException) -> None:
        kind = Unauthenticated if isinstance(error, Unauthenticated) else Forbidden
        if self._told is kind:
            log.debug("%s is still refused: %s", self._what, error)
            return
        self._told = kind
        log.error("%s is refused, and tried again now and then; %s: %s", self._what, ADVICE[kind], error)

    def over(self) -> None:
        if self._told is not None:
            self._told = None
            log.info("%s is not refused any more", self._what)
