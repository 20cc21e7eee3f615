"""SIGTERM while the shared engine is silent: the broker ends within its drain timeout and a little more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from broker_clusters import running_cluster
from eventually import eventually
from raw_client import Gone, RawClient
from servers import DATABASE, mariadb_server, postgres_server, redis_server
from shared_stores import url_of
from tallystick.core.errors import TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send

DRAIN_SECONDS = 4
MOST_SECONDS = DRAIN_SECONDS + 7  # each step of the end took the drain timeout once more: 13 s and more

Signal = Callable[[int], object]
Engine = Callable[[], AbstractContextManager[tuple[str, Signal]]]


@contextlib.contextmanager
def postgresql() -> Iterator[tuple[str, Signal]]:
    with postgres_server() as server:
        yield url_of(server, DATABASE), lambda number: _signal_to_all(server.process.pid, number)


def _signal_to_all(postmaster: int, number: int) -> None:
    """Each session of PostgreSQL has a process group of its own."""
    found = subprocess.run(["pgrep", "-P", str(postmaster)], capture_output=True, text=True, check=True).stdout
    for process in (postmaster, *map(int, found.split())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


@contextlib.contextmanager
def mariadb() -> Iterator[tuple[str, Signal]]:
    with mariadb_server() as server:
        yield url_of(server, DATABASE), lambda number: os.killpg(server.process.pid, number)


@contextlib.contextmanager
def redis() -> Iterator[tuple[str, Signal]]:
    with redis_server() as server:
        yield server.url, lambda number: server.process.send_signal(number)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(postgresql, marks=[pytest.mark.postgresql, pytest.mark.full]),
        pytest.param(mariadb, marks=[pytest.mark.mariadb, pytest.mark.full]),
        redis,
    ],
)
def test_a_broker_ends_in_time_while_its_engine_is_silent(engine: Engine) -> None:
    with engine() as (url, signal_to):
        try:
            with running_cluster(url, brokers=1, stores=2, drain_timeout=f"{DRAIN_SECONDS}s") as cluster:
                (broker,) = cluster.brokers
                with RawClient(broker.url) as client:
                    client.do(Send([OutgoingMessage("orders", b"before")]))
                    signal_to(signal.SIGSTOP)
                    sending = threading.Thread(target=send, args=(client,))
                    sending.start()
                    eventually(lambda: cluster.view(broker)["engine_away"], "the engine is silent")
                    began = time.monotonic()
                    broker.process.send_signal(signal.SIGTERM)
                    broker.wait()
                    took = time.monotonic() - began
                    sending.join()
                    said = broker.log_text()
        finally:
            signal_to(signal.SIGCONT)
    assert took < MOST_SECONDS
    assert "leaving the cluster: not all stores are handed over" in said
    assert "left the cluster" not in said


def send(client: RawClient) -> None:
    with contextlib.suppress(TallystickError, Gone, OSError):
        client.do(Send([OutgoingMessage("orders", b"under way")]))
