"""kill -9 of a broker under load, again and again; and the proof that the checker would notice a loss."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from broker_load import TOPIC, History, Load, check

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.message import StoredMessage

pytestmark = pytest.mark.fault

FAST = {"check_timeout": "500ms", "check_interval": "50ms", "check_interval_cap": "200ms", "max_checks": 1_000}

# Every fourth write is not in the log: it is there as long as the process lives, and lost with a kill.
FORGETFUL = """
import itertools, rocksdict
from tallystick.store.rocksdb import RocksEngine
numbers, options = itertools.count(), rocksdict.WriteOptions()
options.disable_wal = True
def write(self, changes):
    self._db.write(self._encode(changes), options if next(numbers) % 4 == 3 else None)
    self._db.flush_wal(True)
RocksEngine.write = write
"""


def run_with_kills(
    broker: BrokerProcess, kills: int, every: float, settle: float = 30.0
) -> tuple[History, list[StoredMessage], list[str]]:
    with Load(broker) as load:
        for _ in range(kills):
            time.sleep(every)
            broker.kill()
            broker.start()
        time.sleep(every)
        load.settle(settle)
    with RawClient(broker.url) as client:
        found = client.messages(TOPIC)
        views = {gid: client.transaction(gid) for gid in load.history.truth}
        states = {gid: view.state if view else None for gid, view in views.items()}
    return load.history, found, check(load.history, found, states)


def test_nothing_is_lost_doubled_or_invented() -> None:
    with running_broker(log_level="warning", **FAST) as broker:
        history, found, problems = run_with_kills(broker, kills=8, every=0.7)
    assert problems == []
    assert found
    assert history.unknown > 0, "the kills hit nobody"
    assert set(history.truth.values()) == {"committed", "rolled_back"}


@pytest.mark.full
def test_the_checker_finds_a_broker_that_forgets_what_it_acknowledged() -> None:
    with running_broker(log_level="error", prelude=FORGETFUL, **FAST) as broker:
        _, _, problems = run_with_kills(broker, kills=2, every=0.7, settle=2.0)
    assert problems


# --- the checker alone -----------------------------------------------------------------------------------------------


def small_history() -> tuple[History, list[StoredMessage], dict[str, str | None]]:
    history = History()
    for number in range(4):
        gid = f"w-{number}"
        history.truth[gid] = "rolled_back" if number == 3 else "committed"
        history.sizes[gid] = 1
        history.prepared.add(gid)
    history.in_turn = {"w": ["w-0", "w-1", "w-2"]}
    found = [StoredMessage(TOPIC, 0, number, b"", "w", gid=f"w-{number}") for number in range(3)]
    history.seen = {(0, 1): ("w-1", 0)}
    return history, found, dict(history.truth)


def test_the_checker_has_nothing_against_a_good_history() -> None:
    assert check(*small_history()) == []


def swap(found: list[StoredMessage]) -> None:
    found[0].gid, found[2].gid = found[2].gid, found[0].gid


BREAKS: dict[str, Callable[[list[StoredMessage], dict[str, str | None]], object]] = {
    "lost": lambda found, _: found.pop(),
    "ghost": lambda found, _: found.append(StoredMessage(TOPIC, 0, 3, b"", "w", gid="w-3")),
    "2 times": lambda found, _: found.append(StoredMessage(TOPIC, 0, 3, b"", "w", gid="w-2")),
    "taken back": lambda found, _: found.pop(1),
    "in its database and": lambda _, states: states.update({"w-1": "rolled_back"}),
    "forgot": lambda _, states: states.pop("w-3"),
    "out of order": lambda found, _: swap(found),
}


@pytest.mark.parametrize("word", BREAKS)
def test_the_checker_finds_each_kind_of_damage(word: str) -> None:
    history, found, states = small_history()
    BREAKS[word](found, states)
    assert any(word in problem for problem in check(history, found, states))
