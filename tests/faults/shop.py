"""A topic, the consumers of one group on it, and the database in which they have their effects."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

from broker_view import BrokerView
from places import Place

import tallystick
from fork_server import Child, ForkServer

INVISIBLE = 1.0
"""Seconds: the shortest lease that a subscription may ask for."""

_BEGIN = ["before local begin", "after local begin"]
_STATEMENT = ["before statement", "after statement"]
_HANDLER = ["before handler", "after handler"]
_COMMIT = ["before proof", "after proof", "before local commit", "local commit in flight", "after local commit"]
_ACK = ["ack request in flight", "ack request answered"]

# From the start of a consumer to the end of its first message.
STEPS = {
    "inbox": ["received", *_BEGIN, *_STATEMENT, *_HANDLER, *_COMMIT, *_ACK],
    "offset": [*_BEGIN, *_STATEMENT, *_COMMIT, "fetched", *_BEGIN, *_STATEMENT, *_HANDLER, *_COMMIT],
    "none": ["received", *_HANDLER, *_ACK],
}


def steps_of(by: str, engine: str) -> list[str]:
    """SQLite commits inside the process: there is no moment at which only a server knows."""
    return [step for step in STEPS[by] if engine != "sqlite" or step != "local commit in flight"]


def effect_at(steps: list[str]) -> int:
    """The index of the step from which on the effect is committed."""
    return len(steps) - 1 - steps[::-1].index("after local commit")


class Shop:
    """`by` is the consumers' way to have each effect once, `batch` how many messages they handle together."""

    def __init__(self, url: str, place: Place, crew: ForkServer, by: str, batch: int = 1) -> None:
        self.url, self.place, self.by, self.batch = url, place, by, batch
        self.steps = steps_of(by, place.engine)
        self.view = BrokerView(url)
        self.topic = f"topic-{uuid.uuid4().hex[:8]}"
        self.group = f"{self.topic}-consumers"
        self._crew = crew

    def fill(self, count: int, first: int = 0) -> Counter[str]:
        """Send messages; what the effects must be."""
        names = [f"{self.topic}-message-{number}" for number in range(first, first + count)]
        with tallystick.Client(self.url) as client:
            for name in names:
                client.send(self.topic, name)
        return Counter(names)

    def consumer(self, name: str, at: int = 0, **more: Any) -> Child:
        where = {"url": self.url, "topic": self.topic, "group": self.group, "place": self.place}
        how = {"by": self.by, "batch": self.batch, "invisible": INVISIBLE, **more}
        return self._crew.start("consumer_main:main", name=name, at=at, **where, **how)

    def effects(self) -> Counter[str]:
        return Counter(row[0] for row in self.place.rows("select id from effect where id like %s", f"{self.topic}-%"))

    def doers(self, names: Iterable[str]) -> set[str]:
        """The consumers that had the effects of these messages."""
        rows = self.place.rows("select id, doer from effect where id like %s", f"{self.topic}-%")
        return {doer for name, doer in rows if name in set(names)}

    def locked(self, at: int) -> bool:
        """Whether a consumer at a moment keeps the others out: it holds the database (SQLite), or the row it wrote."""
        before = self.steps[:at]
        begun = before.count("after local begin") > before.count("after local commit")
        return begun if self.place.engine == "sqlite" else begun and self._wrote(before)

    def _wrote(self, before: list[str]) -> bool:
        # The first transaction of a consumer by offset only reads.
        return before.count("after statement") > (self.by == "offset")
