"""A real broker process killed at its system calls: at every write and every fsync of its log, and while it starts."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker_links import HttpLink
from broker_script import Told, assert_complete, play
from broker_tracer import from_the_start, injected, newest_log

from brokers import BrokerProcess, running_broker

pytestmark = pytest.mark.fault

FAST = {"check_timeout": "200ms", "check_interval": "50ms", "check_interval_cap": "100ms", "log_level": "warning"}


@pytest.mark.parametrize("call", [pytest.param("write", marks=pytest.mark.full), "fdatasync"])
def test_killed_again_and_again_at_the_next_write_until_all_is_done(tmp_path: Path, call: str) -> None:
    """Each life of the broker ends at its second or third write (or fsync) of the log: so each write of the script is
    once the last thing that a broker began."""
    told, lives, faults = Told(), itertools.cycle((2, 3)), ExitStack()
    with running_broker(tmp_path, start=False, **FAST) as broker, faults:

        def connect() -> HttpLink:
            broker.start()
            faults.enter_context(injected(broker, f"{call}:signal=KILL:when={next(lives)}", newest_log(broker)))
            link = HttpLink(broker.url)
            faults.callback(link.client.close)
            return link

        def mend() -> None:
            broker.wait()
            faults.close()

        play(told, connect, mend)
        faults.close()
        finish(broker, told)
    assert told.broken > 5


def finish(broker: BrokerProcess, told: Told) -> None:
    broker.kill()
    broker.prefix = []
    broker.start()
    link = HttpLink(broker.url)
    assert_complete(told, link, link.drain)
    link.client.close()


STARTING = ["rename:when=1", "rename:when=2", "write:when=3", "fdatasync:when=2", "rename:when=3", "write:when=20"]


@pytest.mark.full
def test_killed_again_and_again_while_it_starts(tmp_path: Path) -> None:
    """On an empty directory, and then while it recovers: one crash within the other."""
    told = Told()
    with running_broker(tmp_path, start=False, **FAST) as broker:
        assert deaths_while_starting(broker) >= 4
        broker.prefix = []
        broker.start()
        link = play(told, lambda: HttpLink(broker.url), lambda: None)
        assert isinstance(link, HttpLink)
        link.client.close()
        broker.kill()
        assert deaths_while_starting(broker) >= 3
        finish(broker, told)


def deaths_while_starting(broker: BrokerProcess) -> int:
    deaths = 0
    for fault in STARTING:
        call, _, when = fault.partition(":")
        broker.prefix = from_the_start(f"{call}:signal=KILL:{when}")
        broker.spawn()
        deaths += broker.ends_before_ready()
        broker.kill()
    return deaths
