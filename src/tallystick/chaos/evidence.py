"""Gathering the evidence: from all databases and journals, and from the brokers over their public API.

What a later step of a message leaves behind is read before what an earlier step does: consumers, then producers. So
whatever shows the later step must show the earlier one, also while everything runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tallystick.chaos.journal import JournalReader
from tallystick.chaos.ledgers import CONSUMERS, PRODUCERS, TOPIC, ConsumerBooks, ProducerBooks
from tallystick.chaos.modes import PROMISES, Mode
from tallystick.chaos.verdict import Findings
from tallystick.demo.looks import log_values, transactions, unsettled_messages
from tallystick.link import Link

PATIENCE_SECONDS = 120.0  # a slow machine breaks no promise
UNDECIDED = ("prepared", "parked")


class Names(NamedTuple):
    """Where things are in the directory of a run."""

    directory: Path

    def database(self, role: str, number: int) -> Path:
        return self.directory / f"{role}-{number}.db"

    def journal(self, role: str, number: int) -> Path:
        return self.directory / f"{role}-{number}.journal"

    def log(self, role: str, number: int) -> Path:
        return self.directory / f"{role}-{number}.log"

    @property
    def enough(self) -> Path:
        return self.directory / "enough"

    @property
    def hold(self) -> Path:
        return self.directory / "hold"


class Left(NamedTuple):
    """What keeps a run from having settled."""

    at_work: int  # producers that have not come to their end
    unresolved: int
    unsettled: int

    @property
    def nothing(self) -> bool:
        return not any(self)


class Inspector:
    """Looks at all that a run leaves behind, during it and after it."""

    def __init__(self, mode: Mode, names: Names, producers: int, consumers: int, urls: Sequence[str]) -> None:
        self._mode, self.urls = mode, list(urls)
        self.producers = [ProducerBooks(names.database("producer", number)) for number in range(producers)]
        self.consumers = [
            ConsumerBooks(names.database("consumer", number), f"{CONSUMERS}{number}") for number in range(consumers)
        ]
        self.told = [JournalReader(names.journal("producer", number)) for number in range(producers)]
        self.counted = [JournalReader(names.journal("consumer", number)) for number in range(consumers)]

    def look(self) -> None:
        for consumer in self.consumers:
            consumer.look()
        for producer in self.producers:
            producer.look()
        for journal in (*self.told, *self.counted):
            journal.look()

    def at_work(self) -> int:
        """How many producers have begun with their work, and how many consumers have begun to listen."""
        return sum(journal.at_work for journal in self.told) + sum(bool(journal.notes) for journal in self.counted)

    def committed(self) -> int:
        return sum(len(books.committed) for books in self.producers)

    def consumed(self) -> int:
        return sum(len(books.names) for books in self.consumers)

    def without_consumed(self, names: set[str]) -> set[str]:
        """Those that no consumer has, as far as was looked."""
        return names.difference(*(books.names for books in self.consumers))

    def standing(self) -> Findings:
        """While the load goes on."""
        self.look()
        found = self._databases()
        return found._replace(unconfirmed=self._unconfirmed(found.committed))

    def settled(self) -> Findings:
        """At the end, everything once more and from the beginning."""
        for books in self.consumers:
            books.look_again()
        self.look()
        found = self._databases()
        return found._replace(
            unconfirmed=self._unconfirmed(found.committed),
            logged=None if self._mode == "consumer-dedup" else list(self._log()),
            outcomes=self._outcomes(),
            unresolved=frozenset(self._unresolved()),
            unsettled=self._unsettled(),
        )

    def left(self) -> Left:
        """Asked in an order in which nothing new can come up behind."""
        for journal in self.told:
            journal.look()
        at_work = sum(not journal.done for journal in self.told)
        return Left(at_work, len(self._unresolved()), self._unsettled())

    def resolved_by_check(self) -> Counter[str]:
        """By outcome, the transactions that the check-back resolved."""
        return Counter(one["state"] for one in self._transactions() if one.get("resolved_by") == "check")

    # --- of the databases ------------------------------------------------------------------------------------------

    def _databases(self) -> Findings:
        return Findings(
            committed=set().union(*(books.committed for books in self.producers)),
            effects=[effect for books in self.consumers for effect in books.effects],
            ok=set().union(*(journal.told("ok") for journal in self.told)),
            rolled_back=set().union(*(journal.told("rolled_back") for journal in self.told)),
        )

    def _unconfirmed(self, committed: set[str]) -> set[str]:
        """What of the committed is not known to be with a broker, for good and visible."""
        if not PROMISES[self._mode].transactional:
            return set().union(*(books.unconfirmed() for books in self.producers))
        gids = self._pending() if self._mode == "check-back" else self._outboxes()
        return committed & set().union(*(books.of_gids(gids) for books in self.producers))

    def _outboxes(self) -> set[str]:
        return set().union(*(books.outbox() for books in self.producers))

    # --- of the brokers --------------------------------------------------------------------------------------------

    @contextmanager
    def _brokers(self) -> Iterator[list[Link]]:
        links = [Link(url, patience=PATIENCE_SECONDS) for url in self.urls]
        try:
            yield links
        finally:
            for link in links:
                link.close()

    def _pending(self) -> set[str]:
        with self._brokers() as brokers:
            return {one["gid"] for link in brokers for state in UNDECIDED for one in transactions(link, state=state)}

    def _unresolved(self) -> set[str]:
        """Gids and names of whatever nobody has decided or confirmed."""
        if self._mode == "level-0":
            return set()
        if PROMISES[self._mode].transactional:
            return self._pending() | self._outboxes()
        return set().union(*(books.unconfirmed() for books in self.producers))

    def _unsettled(self) -> int:
        with self._brokers() as brokers:
            return sum(
                unsettled_messages(link, f"{CONSUMERS}{number}", f"{TOPIC}{number}")
                for link in brokers
                for number in range(len(self.consumers))
            )

    def _transactions(self) -> Iterator[dict[str, str]]:
        with self._brokers() as brokers:
            for link in brokers:
                for number in range(len(self.producers)):
                    yield from transactions(link, group=f"{PRODUCERS}{number}")

    def _outcomes(self) -> dict[str, frozenset[str]]:
        """Of each gid, what barriers and brokers say of it."""
        told: defaultdict[str, set[str]] = defaultdict(set)
        for books in self.producers:
            for gid, outcome in books.outcomes().items():
                told[gid].add(outcome)
        for one in self._transactions():
            if one["state"] not in UNDECIDED:
                told[one["gid"]].add(one["state"])
        return {gid: frozenset(outcomes) for gid, outcomes in told.items()}

    def _log(self) -> Iterator[str]:
        with self._brokers() as brokers:
            for link in brokers:
                for number in range(len(self.consumers)):
                    yield from log_values(link, f"{TOPIC}{number}")
