"""The ground that the load stands on: brokers, and whatever they keep their messages in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tallystick.local import LocalBroker, LocalService

# Times are short so that what a blow leaves behind is resolved and delivered within the round.
SETTINGS = {
    "check_after": "1s",
    "check_interval": "500ms",
    "check_interval_cap": "2s",
    "check_timeout": "2s",
    "redelivery_first": "200ms",
    "redelivery_cap": "2s",
    # A consumer that is away for long must not find its messages among the dead letters.
    "max_attempts": 1_000,
    "min_free_bytes": 0,
}


class Ground(Protocol):
    """Brokers as the monkey handles them: each is started, killed and paused by itself. What they share, if anything,
    is the ground's own to start and to end."""

    @property
    def brokers(self) -> Sequence[LocalService]: ...
    def start(self) -> None:
        """Start everything; it takes work when this returns."""

    def end(self) -> None:
        """End everything, whatever state it is in."""


class RocksdbGround:
    """Brokers that know nothing of each other, each with a store of its own on disk."""

    def __init__(self, directory: Path, count: int) -> None:
        self._brokers = [LocalBroker(directory / f"broker-{number}", **SETTINGS) for number in range(count)]
        for broker in self._brokers:
            broker.process_group = 0

    @property
    def brokers(self) -> Sequence[LocalService]:
        return self._brokers

    def start(self) -> None:
        for broker in self._brokers:
            broker.spawn()
        for broker in self._brokers:
            broker.wait_ready()

    def end(self) -> None:
        for broker in self._brokers:
            broker.kill()
