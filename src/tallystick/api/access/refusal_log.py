"""What the log is told of those who were refused: nobody sees an attack, or a wrong token, that no line tells of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tallystick.api.serving.asgi import Scope

log = logging.getLogger("tallystick.api")

SAY_AGAIN_SECONDS = 60.0
MOST_SAID = 1_000
"""Lines in that time. Beyond them nobody new is told of: whoever has many addresses does not flood the log."""


class RefusalLog:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at: dict[tuple[str, str], float] = {}  # the oldest first

    def tell(self, status: int, route: str, source: str, name: str = "") -> None:
        """`route` is how the table calls it, never a path; `name` is empty as long as nobody knows who asks."""
        now = self._clock()
        self._forget(now - SAY_AGAIN_SECONDS)
        if (source, name) in self._said_at or len(self._said_at) >= MOST_SAID:
            return
        self._said_at[source, name] = now
        log.warning("refused with %d: %s, from %s%s", status, route, source or "somewhere", name and f", by {name!r}")

    def _forget(self, before: float) -> None:
        while self._said_at:
            oldest = next(iter(self._said_at))
            if self._said_at[oldest] > before:
                return
            del self._said_at[oldest]


_refusal_log = RefusalLog()  # of this process, at whichever of its doors
tell_refusal = _refusal_log.tell


def tell_if_refused(status: int, route: str, scope: Scope) -> None:
    """With whom the gate has found, if it has found somebody."""
    if status not in (401, 403):
        return
    caller, client = scope.get("caller"), scope.get("client")
    if caller is not None:
        tell_refusal(status, route, caller.source, caller.identity.name)
    else:
        tell_refusal(status, route, client[0] if client else "")
