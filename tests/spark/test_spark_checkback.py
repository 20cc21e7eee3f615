"""The bulk check-back as a whole: several databases, whose is what, beside others, killed and run again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkback_support import Producer, place_of, running_locally, settings
from pyspark.sql import SparkSession

from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from servers import Server
from service_database import Service
from tallystick.barrier import table_definitions
from tallystick.core.errors import BrokerUnavailable, ConfigError, InvalidRequest, TallystickError
from tallystick.spark.jdbc import Database
from tallystick.spark.jobs.checkback import Decided, Foreign, ProducerDatabase, run_checkback
from tallystick.spark.jobs.checkback.producers import KnownDatabase, is_local, owner_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1h") as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A producer group that no other test has."""
    return f"shop-{abs(hash(request.node.name))}"


@pytest.fixture
def producers(request: pytest.FixtureRequest, client: RawClient, group: str, tmp_path: Path) -> list[Producer]:
    """One with each kind of database."""
    places = [place_of(request, name, tmp_path) for name in ("postgres", "mariadb", "sqlite")]
    return [Producer(Service(place), client, group) for place in places]


@pytest.fixture
def producer(postgres: Server, client: RawClient, group: str) -> Producer:
    return Producer(Service(postgres), client, group)


def test_several_databases_are_decided_in_one_run(
    spark: SparkSession, broker: BrokerProcess, producers: list[Producer]
) -> None:
    for producer in producers:
        producer.commit(30)
        producer.roll_back(10)
        producer.never_begin(10)
    lines: list[str] = []
    summary = run_checkback(spark, settings(broker, *producers), lines.append)
    assert [producer.contradictions() for producer in producers] == [set(), set(), set()]
    assert (summary.pending, summary.committed, summary.rolled_back) == (150, 90, 60)
    assert (summary.unknown, summary.foreign, summary.not_due) == (0, 0, 0)
    assert [(one.outcome, one.count) for one in summary.decided] == [("committed", 30), ("rolled_back", 20)] * 3
    assert lines[0].startswith("deciding from ")
    again = run_checkback(spark, settings(broker, *producers))
    assert (again.pending, again.decided) == (0, [])


@pytest.mark.full
def test_running_and_late_local_transactions_stay_right(
    spark: SparkSession, broker: BrokerProcess, producers: list[Producer]
) -> None:
    late: dict[str, list[str]] = {}
    with contextlib.ExitStack() as open_ones:
        for producer in producers:
            late[producer.topic] = producer.never_begin(3)
            connection, gids = open_ones.enter_context(running_locally(producer, 2))
            producer.other.difference_update(gids)
            producer.committed.update(gids)
            open_ones.callback(connection.commit)
        summary = run_checkback(spark, settings(broker, *producers))
        # SQLite has one writer: while it runs, nothing at all can be decided there.
        assert (summary.rolled_back, summary.unknown) == (6, 6 + 3)
    for producer in producers:
        producer.come_late(late[producer.topic])
    run_checkback(spark, settings(broker, *producers))
    assert [producer.contradictions() for producer in producers] == [set(), set(), set()]
    assert [len(producer.committed) for producer in producers] == [2, 2, 2 + 3]


def test_a_dry_run_says_what_would_be_done(spark: SparkSession, broker: BrokerProcess, producer: Producer) -> None:
    producer.commit(3)
    producer.never_begin(2)
    summary = run_checkback(spark, settings(broker, producer, dry_run=True))
    assert (summary.committed, summary.open, summary.rolled_back, summary.dry_run) == (3, 2, 0, True)
    assert set(producer.states().values()) == {"prepared"}


@pytest.mark.full
def test_a_barrier_table_of_another_name_is_used(
    spark: SparkSession, broker: BrokerProcess, producer: Producer
) -> None:
    """dtm's own: another schema, another name, the same columns."""
    gids = [*producer.commit(2), *producer.never_begin(2)]
    database = replace(producer.database(), also=(producer.source,))  # as it was named when they were prepared
    with producer.service.connection() as connection:
        connection.execute("create schema dtm_barrier")
        made = next(text for text in table_definitions("postgresql") if "tallystick_barrier (" in text)
        connection.execute(made.replace("tallystick_barrier", "dtm_barrier.barrier"))
        connection.execute("insert into dtm_barrier.barrier select * from tallystick_barrier")
        connection.execute("drop table tallystick_barrier")
        connection.commit()
    with pytest.raises(TallystickError, match="--barrier-table"):
        run_checkback(spark, settings(broker, producer))
    moved = settings(broker, producer, databases=(database,), table="dtm_barrier.barrier")
    summary = run_checkback(spark, moved)
    assert (summary.committed, summary.rolled_back) == (2, 2)
    assert set(producer.states()) == set(gids)
    assert producer.contradictions() == set()


# --- whose transaction is whose --------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_transaction_of_another_database_is_left_alone(
    spark: SparkSession, broker: BrokerProcess, producers: list[Producer]
) -> None:
    mine, other, _ = producers
    mine.commit(2)
    other.commit(3)
    summary = run_checkback(spark, settings(broker, mine))
    assert (summary.pending, summary.committed, summary.foreign) == (5, 2, 3)
    assert summary.foreign_sources == [Foreign(other.source, "group", 3)]
    assert set(other.states().values()) == {"prepared"}
    run_checkback(spark, settings(broker, other))
    assert [one.contradictions() for one in (mine, other)] == [set(), set()]


@pytest.mark.full
def test_only_old_enough_and_due_transactions_of_the_group_are_decided(
    spark: SparkSession, broker: BrokerProcess, producer: Producer
) -> None:
    producer.commit(1)
    others = Producer(producer.service, producer.client, "another-group")
    others.commit(2)
    patient = producer.new_gids(3)
    producer.prepare(patient, after_ms=3_600_000)  # its producer asked for an hour before the first check
    assert run_checkback(spark, settings(broker, producer, older_than_ms=3_600_000)).pending == 0
    summary = run_checkback(spark, settings(broker, producer))
    assert (summary.pending, summary.committed, summary.not_due) == (4, 1, 3)
    both = settings(broker, producer, groups=(producer.group, "another-group"))
    assert run_checkback(spark, both).committed == 2
    assert {producer.client.transaction(gid).state for gid in patient} == {"prepared"}  # type: ignore[union-attr]


def test_a_transaction_is_known_by_what_it_says_of_its_database() -> None:
    shop = KnownDatabase("shop", Database.parse("sqlite:///a"), frozenset({"pg://a:1/shop", "pg://proxy:1/shop"}))
    bank = KnownDatabase("bank", Database.parse("sqlite:///b"), frozenset({"pg://b:1/bank"}))
    cases: list[tuple[str, str, str, int | None]] = [
        ("pg://a:1/shop", "group", "", 0),
        ("pg://proxy:1/shop", "group", "", 0),
        ("pg://b:1/bank", "url", "http://h/check", 1),
        ("pg://c:1/other", "group", "", None),
        ("PG://A:1/SHOP", "group", "", None),
        ("", "database", "bank", 1),
        ("", "database", "shop", 0),
        ("", "database", "other", None),
        ("pg://a:1/shop", "database", "other", 0),
        ("pg://c:1/other", "database", "shop", None),  # it says where its row is, and that is not here
        ("pg://a:1/shop", "database", "bank", None),  # it names two of ours
        ("", "group", "", None),
        ("", "url", "shop", None),
    ]
    for source, via, target, expected in cases:
        assert owner_of([shop, bank], False, source, via, target) == expected
    assert owner_of([shop], True, "", "group", "") == 0
    assert owner_of([shop], True, "pg://c:1/other", "group", "") is None


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ("sqlite:/var/shop.db", True),
        ("postgresql://127.0.0.1:5432/shop", True),
        ("postgresql://localhost:5432/shop", True),
        ("mysql://%2Frun%2Fmysqld.sock:/shop", True),
        ("postgresql://:5432/shop", True),
        ("postgresql://%3A%3A1:5432/shop", True),
        ("postgresql://db.internal:5432/shop", False),
        ("mysql://10.0.0.127:3306/127.0.0.1", False),
    ],
)
def test_an_address_that_is_another_database_elsewhere_is_told_apart(source: str, local: bool) -> None:
    assert is_local(source) is local


def test_settings_that_could_decide_from_the_wrong_database_are_refused(
    spark: SparkSession, broker: BrokerProcess, producer: Producer
) -> None:
    with pytest.raises(ConfigError, match="add --group NAME"):
        run_checkback(spark, settings(broker, producer, groups=()))
    with pytest.raises(ConfigError, match="two of them are the same"):
        run_checkback(spark, settings(broker, producer, producer))
    with pytest.raises(InvalidRequest, match="--sourceless"):
        run_checkback(spark, settings(broker, producer, groups=(), sourceless=True))
    with pytest.raises(InvalidRequest, match="--database"):
        run_checkback(spark, settings(broker))
    nobody = ProducerDatabase.parse("postgresql://u:hidden@127.0.0.1:1/shop")
    with pytest.raises(TallystickError, match="--database: cannot connect") as refused:
        run_checkback(spark, settings(broker, databases=(nobody,), groups=("shop",)))
    assert "hidden" not in refused.value.detail


def test_a_broker_that_is_gone_is_told_as_such(spark: SparkSession, producer: Producer) -> None:
    with running_broker() as gone:
        pass
    with pytest.raises(BrokerUnavailable, match="no broker answers"):
        run_checkback(spark, settings(gone, producer, retry=0.0))


# --- beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_two_jobs_the_online_check_and_producers_at_once_come_to_one_outcome(
    spark: SparkSession, postgres: Server, group: str
) -> None:
    service = Service(postgres)
    with running_broker(check_after="0s", databases={"shop": service.url}) as busy, RawClient(busy.url) as client:
        producer = Producer(service, client, group)
        late = producer.never_begin(150)
        producer.commit(150)
        # These the broker asks about by itself, at the database, while the jobs are at them.
        online = producer.new_gids(150)
        producer.prepare(online, via="database", target="shop")
        producer.other.update(online)
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(run_checkback, spark, settings(busy, producer, batch=20)) for _ in range(2)]
            producer.come_late(late[::3])
            summaries = [job.result() for job in jobs]
        assert sum(summary.unknown for summary in summaries) == 0
        eventually(lambda: set(producer.states().values()) <= {"committed", "rolled_back"})
        assert producer.contradictions() == set()


@pytest.mark.full
@pytest.mark.fault
def test_the_command_killed_in_the_middle_and_run_again_leaves_nothing_undone(
    broker: BrokerProcess, producer: Producer
) -> None:
    gids = [*producer.commit(200), *producer.never_begin(400)]
    # One that is running is waited for in its batch, so that the kill comes while the job is at work.
    with running_locally(producer, 1) as (_, running):
        killed = subprocess.Popen(_command(broker, producer, "--wait", "30s"), **_QUIET)
        try:
            eventually(lambda: set(running) <= _waited_for(producer))
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
        producer.client.close()  # the broker has given up a connection that said nothing for so long
        assert "prepared" in producer.states().values()
    done = subprocess.run(_command(broker, producer, "--json"), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    producer.client.close()
    summary = json.loads(done.stdout)
    assert summary["committed"] + summary["rolled_back"] == summary["pending"] <= len(gids) + 1
    assert producer.contradictions() == set()


_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}


def _waited_for(producer: Producer) -> set[str]:
    """Gids of running local transactions, if a checker waits for one of them now."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'insert into%%'"
    with producer.service.connection() as connection:
        (waiting,) = connection.execute(query).fetchone()
    return producer.gids if waiting else set()


def _command(broker: BrokerProcess, producer: Producer, *more: str) -> list[str]:
    command = [sys.executable, "-m", "tallystick", "spark", "checkback", "--url", broker.url, "--master", "local[1]"]
    which = ["--database", producer.service.url, "--group", producer.group, "--older-than", "0s"]
    return [*command, *which, *more]


def test_progress_is_told_while_a_job_runs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.spark import tasks

    monkeypatch.setattr(tasks, "_EVERY_SECONDS", 0.02)
    lines: list[str] = []
    with tasks.parts_reported(spark, lines.append, "sleeping"):
        spark.range(2).repartition(3).mapInArrow(_slowly, "id long").collect()
    assert lines[0] == "sleeping"
    assert any(line.startswith("sleeping: ") and line.endswith("parts") for line in lines[1:])
    assert threading.active_count() < 50


def _slowly(batches: Iterator[Any]) -> Iterator[Any]:
    time.sleep(0.3)
    yield from batches


def test_what_a_summary_adds_up() -> None:
    from tallystick.spark.jobs.checkback import CheckbackSummary

    summary = CheckbackSummary(seconds=2.0)
    for database, outcome, count in [("shop", "committed", 5), ("bank", "committed", 1), ("bank", "unknown", 2)]:
        summary.add(Decided(database, outcome, count))
    assert (summary.committed, summary.unknown, summary.rate) == (6, 2, 3.0)
