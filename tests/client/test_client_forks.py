"""Prefork servers: a child gets connections of its own, and the parent keeps its."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from client_support import Bank, values_in

from brokers import BrokerProcess
from eventually import eventually
from forking_warnings import FORKING_WARNINGS

FORKS = """
import os, sqlite3, sys
import tallystick

url, path, topic = sys.argv[1:]
ts = tallystick.Client(url, group="forks", database=lambda: sqlite3.connect(path))
connection = sqlite3.connect(path)


def block(number):
    with ts.transaction(connection, check=tallystick.CheckBack(after=60)) as tx:
        connection.execute("insert into ledger values (?)", (f"{number:02}",))
        tx.send(topic, number)


block(0)
parents = ts._portal
children = []
for child in range(1, 4):
    pid = os.fork()
    if pid == 0:
        assert ts._portal is None
        connection = sqlite3.connect(path, timeout=30)
        for turn in range(5):
            block(child * 10 + turn)
        assert ts._portal is not parents
        ts.close()
        sys.exit(0)  # with all of the interpreter's cleaning up
    children.append(pid)
connection.close()
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
connection = sqlite3.connect(path, timeout=30)
block(1)
assert ts._portal is parents
ts.close()
connection.close()
"""


def run(program: str, *arguments: str) -> str:
    """Run a program in a separate process, with every warning an error; what it printed."""
    command = [sys.executable, *FORKING_WARNINGS, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_and_its_parent_both_go_on(broker: BrokerProcess, bank: Bank, topic: str) -> None:
    run(FORKS, broker.url, str(bank.path), topic)
    expected = [0, 1, *(child * 10 + turn for child in range(1, 4) for turn in range(5))]
    assert values_in(broker.url, topic) == expected
    assert bank.notes() == [f"{number:02}" for number in expected]


BUSY = """
import os, sys, threading, time
import tallystick

url, topic = sys.argv[1:]
ts = tallystick.Client(url)
stop = threading.Event()
sent = []


def send_all_the_time():
    while not stop.is_set():
        sent.append(ts.send(topic, len(sent)))


threads = [threading.Thread(target=send_all_the_time) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.2)
children = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        ts.send(topic + "-children", os.getpid())
        sys.exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
before = len(sent)
time.sleep(0.3)
assert len(sent) > before, "the parent's client stands still after the forks"
stop.set()
for thread in threads:
    thread.join()
ts.close()
"""


def test_forking_in_the_middle_of_requests(broker: BrokerProcess, topic: str) -> None:
    run(BUSY, broker.url, topic)
    assert len(values_in(broker.url, f"{topic}-children")) == 10


FORGETFUL = """
import sys, tallystick
ts = tallystick.Client(sys.argv[1])
for number in range(100):
    ts.send(sys.argv[2], number, level=0)
"""


def test_a_program_that_forgets_to_close_still_sends_what_it_queued(broker: BrokerProcess, topic: str) -> None:
    run(FORGETFUL, broker.url, topic)
    assert values_in(broker.url, topic) == list(range(100))


APP = """
import os, sqlite3
import tallystick

ts = tallystick.Client({url!r}, group="gunicorn")
# Used before the workers are forked: what they inherit must not be used by them.
ts.send({topic!r}, 0)


def app(environ, start_response):
    connection = sqlite3.connect({path!r}, timeout=30)
    number = int(environ["QUERY_STRING"])
    with ts.transaction(connection) as tx:
        connection.execute("insert into ledger values (?)", (f"{{number:03}}",))
        tx.send({topic!r}, number)
    connection.close()
    body = str(os.getpid()).encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


@contextlib.contextmanager
def gunicorn(directory: Path, *options: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(directory), "-b", address, *options, "service:app"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        assert process.wait(20) == 0, (directory / "log").read_text()


@pytest.mark.parametrize(
    "options", [["--preload", "-w", "3"], ["-w", "2", "--threads", "4"]], ids=["preload", "threads"]
)
def test_gunicorn_workers(broker: BrokerProcess, bank: Bank, topic: str, tmp_path: Path, options: list[str]) -> None:
    text = APP.format(url=broker.url, topic=topic, path=str(bank.path))
    (tmp_path / "service.py").write_text(text)
    with gunicorn(tmp_path, *options) as url:
        eventually(lambda: _answers(url))
        workers = {httpx.get(f"{url}/?{number}", timeout=30).text for number in range(1, 31)}
        time.sleep(0.1)
    assert len(workers) >= 1
    starts = 1 if "--preload" in options else 2
    assert values_in(broker.url, topic) == sorted([0] * starts + [500] + list(range(1, 31)))
    assert bank.notes() == [f"{number:03}" for number in [*range(1, 31), 500]]


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/?500", timeout=30).status_code == 200
    except httpx.HTTPError:
        return False
