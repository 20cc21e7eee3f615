"""A process that is forked inside a block: the block is the parent's, however the child leaves it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from borders_support import Service

from forking_warnings import FORKING_WARNINGS

PROGRAM = """
import os, sys
import tallystick
from tallystick.barrier.errors import UnsupportedConnection

url, group, topic, mode, leaving, driver, *place = sys.argv[1:]
options = {"late": {}, "early": {"prepare": "early"}}[mode]


def connect():
    if driver == "sqlite":
        import sqlite3
        return sqlite3.connect(place[0])
    parameters = dict(pair.split("=", 1) for pair in place)
    parameters["port"] = int(parameters["port"])
    module = __import__(driver)
    return module.connect(**parameters)


def leave(tx):
    if leaving == "exit":
        sys.exit(0)
    if leaving == "error":
        raise LookupError
    if leaving == "commit":
        tx.commit()


ts = tallystick.Client(url, group=group, check_after=60, wait=True)
connection = connect()
is_child = False
try:
    with ts.transaction(connection, **options) as tx:
        if mode == "early":
            tx.send(topic, "once")
            tx.prepare()
        connection.cursor().execute("insert into ledger (note) values ('once')")
        if mode != "early":
            tx.send(topic, "once")
        child = os.fork()
        if child == 0:
            is_child = True
            leave(tx)
        else:
            assert os.waitpid(child, 0)[1] == 0
except (LookupError, SystemExit, UnsupportedConnection) as error:
    assert is_child, error
    assert leaving in ("error", "exit") or "forked inside the block" in str(error), error
else:
    assert not is_child, "the child was told that it had committed"
if is_child:
    os._exit(0)  # SQLite's connections are not even to be closed there
ts.close()
connection.close()
"""


def place(service: Service) -> list[str]:
    bank = service.bank
    if bank.engine == "sqlite":
        return ["sqlite", str(bank.path)]
    driver = {"postgresql": "psycopg", "mysql": "pymysql"}[bank.engine]
    return [driver, *(f"{name}={value}" for name, value in bank.parameters().items())]


@pytest.mark.parametrize("mode", ["late", "early"])
def test_a_child_that_was_forked_inside_a_block_neither_commits_nor_undoes_it(any_service: Service, mode: str) -> None:
    service = any_service
    ways = ("exit", "error", "end", "commit") if mode == "late" else ("end",)
    for leaving in ways:
        where = [service.broker.url, service.group, service.topic, mode, leaving, *place(service)]
        command = [sys.executable, *FORKING_WARNINGS, "-c", PROGRAM, *where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (leaving, done.returncode, done.stderr) == (leaving, 0, "")
    service.agrees_on(*["once"] * len(ways))
