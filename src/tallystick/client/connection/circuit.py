"""A circuit breaker for one broker: callers do not wait again and again for a broker that is away or hangs.

closed
    Operations are sent. A broker that refuses connections gets `AWAY_SECONDS`. A broker that takes requests and answers
    none gets half of the client's `timeout`. An answer to any other request in that time shows that it works.
open
    Operations and questions fail at once, and the error names the time and the reason. The peer's background probe
    looks for the broker. Operations that insist (commits and rollbacks of ended blocks) and other background work are
    still retried. Where connections are refused, which takes no time, questions are sent, and one caller is let
    through every `TRY_SECONDS`. The next request decides for that caller, whether or not it carries the operation.
half-open
    The probe was answered after a hang. One request is sent; while it is under way, other operations fail at once. Its
    answer closes the circuit, its failure opens it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from tallystick.client.base.stats import Stats
from tallystick.client.connection.exchange import distrusted, never_sent_to
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable, TallystickError

log = logging.getLogger("tallystick.client")

AWAY_SECONDS = 1.0
"""How long operations are retried at a broker that refuses connections, if no other broker may answer. A restart that
takes longer fails them."""
TAKEOVER_SECONDS = 10.0
"""What a store of a cluster gets at least while other brokers answer: a takeover lasts 3 to 5 s."""
SAME_TROUBLE_SECONDS = 5.0
"""A failure that comes later than this after the one before begins a new trouble."""
LEAST_PAUSE_SECONDS = 0.05
TRY_SECONDS = 0.05
QUICK_SECONDS = 0.5
"""A failure that took longer is not tried again with a caller that waits."""

State = Literal["closed", "open", "half-open"]


class Circuit:
    """The state of one broker. Belongs to one event loop; threads read it, and write `answered_at`."""

    def __init__(
        self,
        address: str,
        timeout: float,
        stats: Stats | None = None,
        *,
        may_another_answer: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state: State = "closed"
        self.troubled = False  # whether anything has failed since the last answer
        self.answered_at = 0.0
        self.on_open: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None  # it may be worth a try again
        self._address, self._timeout = address, timeout
        self._stats = stats or Stats()
        self._may_another_answer = may_another_answer
        self._trouble_at = self._failed_at = 0.0
        self.hangs = False  # it took the last request that failed, and did not answer
        self._quick = False
        self._patience = 0.0
        self._since = 0.0
        self._reason = ""

    # What happens

    def failed(self, error: TallystickError) -> None:
        """A request, or a probe, has failed. `error.extra["began"]` says when it began."""
        if not isinstance(error, BrokerUnavailable):
            self.answered()  # with a refusal, but it is there
            return
        if distrusted(error):
            return  # it is there, and each caller gets this error without a wait
        now = time.monotonic()
        began = error.extra.get("began", now)
        if self.state == "closed" and self.answered_at > began:
            return
        if not self.troubled or began - self._failed_at > SAME_TROUBLE_SECONDS:
            self.troubled, self._trouble_at = True, began
        self._trouble_at = min(self._trouble_at, began)
        self._failed_at = now
        self._quick = isinstance(error, BrokerUnreachable) and now - began < QUICK_SECONDS
        self.hangs = not isinstance(error, BrokerUnreachable)
        self._patience = self._patience_with(error)
        if self.state == "half-open" or (self.state == "closed" and now - self._trouble_at >= self._patience):
            self._open(error, now)

    def _patience_with(self, error: BrokerUnavailable) -> float:
        if self._may_another_answer():
            return max(self._timeout, TAKEOVER_SECONDS)
        if isinstance(error, BrokerUnreachable):
            return min(AWAY_SECONDS, self._timeout)
        return self._timeout / 2

    def answered(self) -> None:
        """An operation was answered."""
        self.answered_at = time.monotonic()
        self.troubled = False
        if self.state != "closed":
            self._shows_again()
            self.state = "closed"
            self.on_change()

    def probe_answered(self) -> None:
        """The broker has said who it is. After a hang that does not show yet that it takes operations."""
        if not self.hangs:
            self.answered()
        elif self.state == "open":
            self._shows_again()
            self.state = "half-open"
            self.on_change()

    def _open(self, error: TallystickError, now: float) -> None:
        if self.state == "closed":
            self._since = time.time() - (now - self._trouble_at)
            self._stats.count("circuits_opened")
        self.state = "open"
        self._reason = error.detail
        self._stats.unavailable_since = {**self._stats.unavailable_since, self._address: self._since}
        log.warning("%s; operations fail at once until it answers", self._words())
        self.on_open()

    def _shows_again(self) -> None:
        if self._address in self._stats.unavailable_since:
            rest = {address: at for address, at in self._stats.unavailable_since.items() if address != self._address}
            self._stats.unavailable_since = rest
            log.info("broker %s answers again", self._address)

    # What it means

    def refuses(self, under_way: bool) -> bool:
        """Whether a new operation fails at once. `under_way`: other requests to the broker are not answered yet."""
        if self.state == "closed":
            return False
        if under_way:
            return True
        return self.state == "open" and not (self._quick and time.monotonic() - self._failed_at > TRY_SECONDS)

    def refuses_questions(self) -> bool:
        """Whether a question fails at once. Questions are sent half-open, and where connections are refused: they close
        no circuit, and a refused connection takes no time."""
        return self.state == "open" and not self._quick

    def refusal(self, *, uncertain: bool = False) -> TallystickError:
        """The error for an operation that fails at once; `uncertain` if it was sent before."""
        self._stats.count("failed_at_once")
        since = self._since
        if uncertain:
            return BrokerUnavailable(f"no answer to this operation, it may have acted; {self._words()}", since=since)
        error = BrokerUnreachable(f"{self._words()}. The operation was not sent, it has not acted", since=since)
        return never_sent_to(self._address, error)

    def _words(self) -> str:
        at = datetime.fromtimestamp(self._since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"broker {self._address} is unavailable since {at} ({time.time() - self._since:.0f} s): {self._reason}"

    def next_try(self, wait: float) -> float:
        """A pause of at most `wait` seconds before the next try: it ends when the patience with the broker does."""
        if self.state != "closed" or not self.troubled:
            return wait
        left = self._trouble_at + self._patience - time.monotonic()
        return min(wait, max(left, LEAST_PAUSE_SECONDS))
