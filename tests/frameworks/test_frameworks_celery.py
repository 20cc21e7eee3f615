"""Celery: a task whose worker process is killed is delivered again, and its effect and its message are there once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from client_support import messages_in

from brokers import BrokerProcess
from eventually import eventually
from servers import RedisServer

EXAMPLES = Path(__file__).parents[2] / "examples"

# The example's own tasks. The first delivery of each dies at a point of its block, as if by `kill -9`.
KILLING = """
import contextlib, os, pathlib, signal
import tallystick
from celery_tasks import app

whole = tallystick.Client.transaction

def die_once(gid, point):
    mark = pathlib.Path(f"{gid}.{point}")
    if os.environ["KILL_AT"] == point and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

@contextlib.contextmanager
def transaction(client, conn, gid):
    with whole(client, conn, gid=gid) as tx:
        yield tx
        die_once(gid, "before the commit")
    die_once(gid, "after the commit")

tallystick.Client.transaction = transaction
"""


@contextmanager
def worker(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    options = ["--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "--quiet", "-A", "killing", "worker", *options]
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.parametrize("point", ["before the commit", "after the commit"])
def test_a_task_whose_process_is_killed_has_its_effect_once(
    broker: BrokerProcess, redis: RedisServer, tmp_path: Path, point: str
) -> None:
    (tmp_path / "killing.py").write_text(KILLING)
    queue = f"/{1 if point.startswith('before') else 2}"  # a Redis database of its own
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "default",
        "TALLYSTICK_URL": broker.url,
        "CELERY_BROKER_URL": f"redis://{redis.host}:{redis.port}{queue}",
        "KILL_AT": point,
    }
    orders = [uuid.uuid4().int % 10**9 for _ in range(2)]
    hand_in = f"import celery_tasks as c; c.set_up(); [c.charge.delay(order, 30) for order in {orders}]"
    subprocess.run([sys.executable, "-c", hand_in], cwd=tmp_path, env=environment, check=True, timeout=120)

    def charged() -> list[int]:
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=30)) as conn:
            return sorted(order for (order,) in conn.execute("select order_number from charges"))

    def sent() -> list[int]:
        found = [message.json()["order"] for message in messages_in(broker.url, "example.charges")]
        return sorted(order for order in found if order in orders)

    def waiting() -> int:
        with closing(redis.connect(db=int(queue[1:]))) as tasks:
            return int(tasks.llen("celery")) + int(tasks.hlen("unacked"))  # type: ignore[arg-type]

    with worker(tmp_path, environment):
        eventually(lambda: len(list(tmp_path.glob(f"*.{point}"))) == 2 and waiting() == 0)
        eventually(lambda: charged() == sorted(orders) and sent() == sorted(orders))
    assert (charged(), sent()) == (sorted(orders), sorted(orders))
    assert "WorkerLostError" in (tmp_path / "worker.log").read_text()
