"""A client that exists before a prefork server forks: every worker gets connections of its own and loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from broker_view import BrokerView
from places import Place, server_place
from survivors import BROKER

from brokers import running_broker
from eventually import eventually, eventually_equal
from servers import Server

pytestmark = [pytest.mark.fault, pytest.mark.postgresql]

GROUP, TOPIC = "prefork", "prefork"
WORKERS = 2
CALLS = 12
EACH = 10
LONG = 60  # so that a worker is seldom between two calls
START_SECONDS = 90.0


class Gunicorn:
    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self._address = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        # Each call on a new connection, so that the workers share them out.
        with urlopen(f"{self._address}{path}", timeout=60) as answer:
            return json.load(answer)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/sockets")
                return
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.1)

    def from_each_worker(self, path: str) -> dict[int, Any]:
        """The answers of all workers by process id."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + START_SECONDS
        while len(found) < WORKERS:
            assert time.monotonic() < deadline, f"only {list(found)} answer"
            with ThreadPoolExecutor(2 * WORKERS) as pool:
                found.update({one["pid"]: one for one in pool.map(self.get, [path] * 2 * WORKERS)})
        return found


@contextlib.contextmanager
def gunicorn(url: str, place: Place, directory: Path) -> Iterator[Gunicorn]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"url": url, "place": place, "group": GROUP, "topic": TOPIC}
    options = ["--preload", "--workers", str(WORKERS), "--bind", f"127.0.0.1:{port}", "--no-control-socket"]
    log = directory / "gunicorn.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options, "prefork_app:application"],
            cwd=Path(__file__).parent,
            env={**os.environ, "PREFORK": json.dumps(settings)},
            stdout=written,
            stderr=written,
        )
    server = Gunicorn(port, process, log)
    try:
        server.wait_ready()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_workers_forked_from_a_used_client_share_nothing_and_lose_nothing(postgres: Server, tmp_path: Path) -> None:
    place = server_place(postgres)
    with running_broker() as broker, gunicorn(broker.url, place, tmp_path) as server:
        view = BrokerView(broker.url)
        with ThreadPoolExecutor(CALLS) as pool:
            answers = list(pool.map(lambda call: server.get(f"/run?name={call}&count={EACH}"), range(CALLS)))
        assert len({one["pid"] for one in answers}) == WORKERS, server.log.read_text()
        gids = [gid for one in answers for gid in one["gids"]]
        assert len(set(gids)) == CALLS * EACH

        expected = {f"{call}-{number}" for call in range(CALLS) for number in range(EACH)} | {"before-the-fork"}
        assert {row[0] for row in place.rows("select id from business")} == expected
        eventually_equal(lambda: sorted(message["value"] for message in view.log(TOPIC)), sorted(expected))
        resolved = {one["resolved_by"] for one in view.transactions(group=GROUP)}
        assert resolved == {"producer"}, "a lost answer was left to the check-back"

        workers = list(server.from_each_worker("/sockets").values())
        own = [set(worker["now"]) - set(worker["before"]) for worker in workers]
        assert all(worker["before"] for worker in workers), "the client was not in use before the fork"
        assert all(own), "a worker has no connection of its own"
        assert own[0].isdisjoint(own[1])
    assert "Traceback" not in server.log.read_text()
    assert server.process.returncode == 0


def test_a_worker_killed_in_the_middle_leaves_its_transactions_to_the_others(postgres: Server, tmp_path: Path) -> None:
    place = server_place(postgres)
    with running_broker(**BROKER) as broker, gunicorn(broker.url, place, tmp_path) as server:
        view = BrokerView(broker.url)
        victim = min(server.from_each_worker("/sockets"))
        with ThreadPoolExecutor(CALLS) as pool:
            calls = [pool.submit(server.get, f"/run?name={call}&count={LONG}") for call in range(CALLS)]
            eventually(lambda: len(place.rows("select id from business")) > EACH, pause=0.005)
            os.kill(victim, signal.SIGKILL)
        broken = [call for call in calls if call.exception() is not None]
        assert broken, "nobody was at work in the worker that was killed"
        eventually_equal(lambda: view.pending(GROUP), [])
        committed = sorted(row[0] for row in place.rows("select id from business"))
        eventually_equal(lambda: sorted(message["value"] for message in view.log(TOPIC)), committed)
        answered = [call.result() for call in calls if call.exception() is None]
        assert len(committed) >= len(answered) * LONG
