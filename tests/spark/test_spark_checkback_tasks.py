"""A task of the bulk check-back, without Spark around it: what it decides, and what a kill leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkback_support import ENGINES, SQLITE_FIRST, Producer, counted, decider, place_of, running_locally

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from service_database import Service
from tallystick.barrier import TablesMissing, adapt_sync, decide_many, known_outcomes, run_sync
from tallystick.core.errors import BrokerUnavailable, TallystickError
from tallystick.core.ops import Commit
from tallystick.spark.jobs.checkback.decider import BulkDecider


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1h") as running:
        yield running


@pytest.fixture(params=ENGINES)
def producer(request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path) -> Iterator[Producer]:
    with RawClient(broker.url) as client:
        yield Producer(Service(place_of(request, request.param, tmp_path)), client)


def test_every_transaction_gets_the_outcome_of_its_own_database(broker: BrokerProcess, producer: Producer) -> None:
    producer.commit(20)
    producer.roll_back(10)
    producer.never_begin(10)
    assert counted(decider(broker, producer), producer.gids) == {
        "committed": 20,
        "rolled_back": 20,
    }
    assert producer.contradictions() == set()


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_running_one_is_left_alone_and_decided_later(
    broker: BrokerProcess, producer: Producer, commits: bool
) -> None:
    with running_locally(producer, 1) as (connection, gids):
        assert counted(decider(broker, producer), gids) == {"unknown": 1}
        view = producer.client.transaction(gids[0])
        assert view is not None
        # Not even counted as a check: its limits belong to the online check.
        assert (view.state, view.checks) == ("prepared", 0)
        if commits:
            connection.commit()
            producer.other.difference_update(gids)
            producer.committed.update(gids)
    counted(decider(broker, producer), gids)
    assert producer.contradictions() == set()


def test_a_local_transaction_that_comes_after_the_decision_fails(broker: BrokerProcess, producer: Producer) -> None:
    late = producer.never_begin(5)
    counted(decider(broker, producer), late)
    producer.come_late(late)
    assert not producer.committed
    assert producer.contradictions() == set()


def test_what_was_resolved_meanwhile_keeps_its_outcome(broker: BrokerProcess, producer: Producer) -> None:
    gids = producer.commit(4)
    for gid in gids[:2]:
        producer.client.do(Commit(gid))
    counted(decider(broker, producer), gids)
    counted(decider(broker, producer), gids)
    assert producer.contradictions() == set()


def test_a_dry_run_changes_nothing_anywhere(broker: BrokerProcess, producer: Producer) -> None:
    gids = [*producer.commit(3), *producer.never_begin(2)]
    found = counted(decider(broker, producer, dry_run=True), gids)
    assert found == {"committed": 3, "open": 2}
    assert set(producer.states().values()) == {"prepared"}
    with producer.service.connection() as connection:
        assert set(run_sync(adapt_sync(connection), known_outcomes(gids))) == producer.committed


def test_a_missing_table_is_no_outcome(broker: BrokerProcess, producer: Producer) -> None:
    gids = producer.commit(2)
    with pytest.raises(TablesMissing):
        counted(decider(broker, producer, table="no_such_table"), gids)
    assert set(producer.states().values()) == {"prepared"}


def test_a_database_that_is_gone_is_told_by_its_option_and_decides_nothing(
    broker: BrokerProcess, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.spark.jobs.checkback.decider._PAUSE_SECONDS", 0)
    gids = producer.commit(1)
    gone = Producer(_Gone(), producer.client)  # type: ignore[arg-type]
    with pytest.raises(TallystickError, match="--database: "):
        counted(decider(broker, gone), gids)
    assert set(producer.states().values()) == {"prepared"}


class _Gone:
    url = "sqlite:///no/such/file.db"


def test_without_a_broker_the_task_fails(producer: Producer) -> None:
    with running_broker() as gone:
        pass
    with pytest.raises(BrokerUnavailable):
        counted(decider(gone, producer, retry=0.0), producer.commit(1))


# --- kills -----------------------------------------------------------------------------------------------------------

# For each step a child that kills itself there. Children of a small process: a test's own has threads.
_KILLED = """
import json, os, signal, sys
from tallystick.link import Link
from tallystick.spark.jdbc import Database
from tallystick.spark.jobs.checkback.decider import BulkDecider

left = 0

def passed():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def stepping(real):
    def call(*args, **rest):
        passed()
        result = real(*args, **rest)
        passed()
        return result
    return call

BulkDecider._ask = stepping(BulkDecider._ask)
Link.post = stepping(Link.post)
given = json.load(sys.stdin)
given["task"]["database"] = Database.parse(given["task"]["database"])
for step, gids in enumerate(given["gids"], 1):
    left = step
    child = os.fork()
    if not child:
        BulkDecider(**given["task"]).run(sorted(gids))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.fault
@pytest.mark.parametrize("producer", SQLITE_FIRST, indirect=True)
def test_a_task_killed_at_any_step_and_run_again_comes_to_the_truth(broker: BrokerProcess, producer: Producer) -> None:
    """Two batches, each asks and tells: a kill before and after each of these is eight kills."""
    task = {"url": broker.url, "database": producer.service.url, "table": "tallystick_barrier"}
    task |= {"wait": 0.2, "batch": 4, "retry": 20.0, "dry_run": False}
    gids = [[*producer.commit(4), *producer.never_begin(3)] for _ in range(8)]
    told = subprocess.run(
        [sys.executable, "-c", _KILLED],
        input=json.dumps({"task": task, "gids": gids}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    assert [int(code) for code in told.stdout.split()] == [-signal.SIGKILL] * 8
    left = {gid for gid, state in producer.states().items() if state == "prepared"}
    assert {gid for some in gids[1:] for gid in some} - left, "no task had told anything before it was killed"
    assert set(gids[0]) <= left
    producer.come_late(sorted(producer.other)[::2])
    counted(decider(broker, producer), left)
    assert producer.contradictions() == set()


# --- the judge is judged ---------------------------------------------------------------------------------------------


class _JoinOnly(BulkDecider):
    """The seeded bug: what has no row is called rolled back, and nothing is inserted."""

    def _ask(self, gids: list[str]) -> dict[str, str]:
        connection: Any = self.database.connect(self.wait)
        try:
            known = run_sync(adapt_sync(connection), known_outcomes(gids, table=self.table))
        finally:
            connection.close()
        return {gid: known.get(gid, "rolled_back") for gid in gids}


class _Guessing(BulkDecider):
    """The seeded bug: a running transaction is called committed."""

    def _ask(self, gids: list[str]) -> dict[str, str]:
        connection: Any = self.database.connect(self.wait)
        try:
            decided = run_sync(adapt_sync(connection), decide_many(gids, wait=self.wait, table=self.table))
        finally:
            connection.close()
        return {gid: "committed" if said == "running" else said for gid, said in decided.items()}


def test_a_join_without_the_insert_is_caught_by_a_late_transaction(broker: BrokerProcess, producer: Producer) -> None:
    late = producer.never_begin(3)
    counted(decider(broker, producer, _JoinOnly), late)
    producer.come_late(late)
    assert producer.contradictions() == set(late)


def test_a_guess_about_a_running_transaction_is_caught(broker: BrokerProcess, producer: Producer) -> None:
    with running_locally(producer, 2) as (_, gids):
        counted(decider(broker, producer, _Guessing), gids)
    assert producer.contradictions() == set(gids)
