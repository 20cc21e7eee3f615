"""A fork in the middle of the client's own database work: the child must not inherit a lock it cannot give back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from brokers import running_broker
from forking_warnings import FORKING_WARNINGS
from tallystick.client.base.forks import _Gate

SLOW_WRITER = """
import os, sqlite3, sys, time
import tallystick
from tallystick.barrier import create_tables

url, path = sys.argv[1:]


class Slow(sqlite3.Connection):
    def execute(self, sql, *arguments):
        done = super().execute(sql, *arguments)
        if sql.lower().startswith("begin immediate"):
            time.sleep(0.5)  # the fork below comes while the write lock is held
        return done


first = sqlite3.connect(path)
create_tables(first)
first.close()
ts = tallystick.Client(url, group="forks", database=lambda: sqlite3.connect(path, factory=Slow))
time.sleep(0.2)
pid = os.fork()
if pid == 0:
    connection = sqlite3.connect(path, timeout=3)
    connection.execute("begin immediate")
    connection.rollback()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
ts.close()
sys.exit(code)
"""


def test_a_child_forked_while_the_client_writes_can_write(tmp_path: Path) -> None:
    with running_broker() as broker:
        command = [sys.executable, *FORKING_WARNINGS, "-c", SLOW_WRITER, broker.url, str(tmp_path / "service.db")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_handler_that_forks_does_not_wait_for_itself() -> None:
    gate = _Gate()
    gate.PATIENCE_SECONDS = 60.0
    with gate.work():
        gate.close()
        gate.open()
