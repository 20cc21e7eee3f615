"""The checker: what was tried, what callers were told, what is in the databases, compared as sets.

A try has three outcomes: `ok`, `failed` (nothing happened, and the caller knows) and unknown, which is everything else:
told so, or its process died before it was told anything. Unknown ones may have happened or not, but not by half.

I1 nothing is lost, I2 nothing is invented, I3 nothing happens twice, I4 an outcome never changes, I5 what was
acknowledged is durable, I6 nothing is left undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Violation(NamedTuple):
    invariant: str
    what: str
    name: str


@dataclass
class History:
    """Names of transactions unless said otherwise. `sent` are messages without a transaction."""

    tried: set[str] = field(default_factory=set)
    ok: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    rows: Counter[str] = field(default_factory=Counter)
    effects: Counter[str] = field(default_factory=Counter)
    sent: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    outcomes: Mapping[str, set[str]] = field(default_factory=dict)
    """Of each gid, every outcome that the broker or a barrier tells."""
    pending: set[str] = field(default_factory=set)
    """Gids without an outcome, outbox rows, messages that nobody settled."""


def violations(history: History) -> list[Violation]:
    """Everything that is wrong with a history, once all has come to rest."""
    rows, effects = set(history.rows), set(history.effects)
    known = history.tried | history.sent
    assert history.ok | history.failed <= history.tried, "an outcome of something that nobody tried"
    return [
        *_all("I1", "committed, but it has no effect", rows - effects),
        *_all("I2", "an effect of what was never committed", effects - rows - history.sent),
        *_all("I2", "an effect or a row of what nobody tried", (effects | rows) - known),
        *_all("I3", "the effect is there more than once", _repeated(history.effects)),
        *_all("I3", "the change is there more than once", _repeated(history.rows)),
        *_all("I4", "two outcomes", (gid for gid, told in history.outcomes.items() if len(told) > 1)),
        *_all("I4", "failed, the caller was told, but it is committed", history.failed & rows),
        *_all("I5", "ok, the caller was told, but it is not there", history.ok - rows),
        *_all("I5", "the message was confirmed, but it has no effect", history.confirmed - effects),
        *_all("I6", "not decided or not settled", history.pending),
    ]


def _all(invariant: str, what: str, names: Iterable[str]) -> list[Violation]:
    return [Violation(invariant, what, name) for name in sorted(names)]


def _repeated(counted: Counter[str]) -> set[str]:
    return {name for name, times in counted.items() if times > 1}
