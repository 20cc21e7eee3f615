"""The processes of the tests themselves: forked, and yet alone in life and death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from brokers import running_broker
from eventually import eventually

pytestmark = pytest.mark.fault

HOLDS_A_BROKER = """
import sys, time
from brokers import running_broker
with running_broker() as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


def test_two_brokers_are_two_processes_and_the_death_of_one_is_not_the_others() -> None:
    with running_broker() as one, running_broker() as other:
        assert len({one.pid, other.pid, os.getpid()}) == 3
        one.kill()
        assert (one.process.poll(), one.get("/readyz")) == (-signal.SIGKILL, None)  # type: ignore[union-attr]
        assert other.get("/readyz") == 200


def test_a_broker_ends_with_its_tests_even_if_they_are_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDS_A_BROKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        broker = int(holder.stdout.readline())
        assert psutil.pid_exists(broker)
        holder.kill()
    eventually(lambda: not psutil.pid_exists(broker), "the broker is gone")


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    with running_broker(tmp_path, start=False, port=1, grpc_port=2, store="no-such-store") as broker:
        broker.spawn()
        assert broker.wait() != 0
        assert "no-such-store" in broker.log_text()
