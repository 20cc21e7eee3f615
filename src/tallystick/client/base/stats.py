"""Counts of what a client left to others instead of raising, for a service's own metrics."""

from __future__ import annotations

import threading

from msgspec import Struct, field

_counting = threading.RLock()  # a signal handler may count while its own thread does


class Stats(Struct):
    """What happened in a client since it was made; read it as often as you like."""

    unconfirmed_dropped: int = 0
    """Level 0 messages not even queued, because too many were waiting."""
    unconfirmed_failed: int = 0
    """Level 0 messages that the broker did not take."""
    commits_left_to_check: int = 0
    """Transactions whose commit the broker did not confirm in time; the check-back finishes them."""
    checks_answered: int = 0
    """Questions of a check-back that were answered with an outcome."""
    checks_unknown: int = 0
    """Questions of a check-back that were answered with `unknown`."""
    outbox_sent: int = 0
    """Outbox rows sent after their block, by this process or for one that died."""
    outbox_too_old: int = 0
    """Outbox rows seen that are older than the broker remembers gids; each needs an operator."""
    outbox_refused: int = 0
    """Times that a broker refused an outbox row (a limit, a URL that it may not call); an operator must look."""
    ways_failed: int = 0
    """Attempts to reach the service's database over a second connection that failed or took too long."""
    handled: int = 0
    """Messages whose handler came to its end."""
    handler_failures: int = 0
    """Messages whose handler raised."""
    undecodable: int = 0
    """Messages whose value was not of the subscription's type; they went to the dead-letter topic."""
    batches_undone: int = 0
    """Batches that failed as a whole; their messages were handled one by one."""
    duplicates: int = 0
    """Messages that had their effect before and were only acknowledged."""

    circuits_opened: int = 0
    """Times that a broker was found to be away or to hang; until it answers, operations fail at once."""
    failed_at_once: int = 0
    """Operations that failed because their broker was known to be away or to hang."""
    unavailable_since: dict[str, float] = field(default_factory=dict)
    """The brokers that are known to be away or to hang now: since when, in seconds since the epoch, by address."""
    unconfirmed_refused: str = ""
    """Why a level 0 message was last refused in a way that no later attempt cures; empty if none was."""

    def count(self, what: str, many: int = 1) -> None:
        """Add to what several threads count."""
        with _counting:
            setattr(self, what, getattr(self, what) + many)
