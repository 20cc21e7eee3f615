"""The sink when processes are killed: JVMs, executors, workers and the broker, at chosen and at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from sink_support import NOTHING, difference, expected, rows
from sink_support_query import Job, Pipeline, job

from brokers import BrokerProcess
from tallystick.core.ids import new_gid

pytestmark = [pytest.mark.spark, pytest.mark.fault]

SEED = 20_261_115


@pytest.mark.full
def test_a_driver_that_is_killed_at_the_worst_moments(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """A, B and C of the fault table, as three queries of one driver. After its end another one goes on with them.

    A: killed once batch 1 is committed, and Spark does not know it. The replay has the same rows in other tasks.
    B: killed while tasks of batch 1 send. Their parts stay behind, and are never visible.
    C: a task of batch 1 fails after it has sent, and is run again: of its two parts one counts.
    """
    decided, sending, repeated = (Pipeline(tmp_path / new_gid(), broker.url) for _ in range(3))
    decided.arm(committed_1="wait")
    sending.arm(sending_1="wait")
    repeated.arm(sent_1="raise")
    with job(decided, sending, repeated, master="local[2,4]") as driver:
        driver.until(lambda: decided.is_at("committed.1") and sending.is_at("sending.1"))
        driver.until(lambda: repeated.logged("commits") == [0, 1, 2])
        driver.kill()

    assert (decided.logged("offsets"), decided.logged("commits")) == ([0, 1], [0])
    assert difference(broker.url, decided.topic, expected(0, 40)) == NOTHING
    decided.settings["splits"] = 4
    assert decided.run(spark) == ""
    replayed = [call for call in decided.calls() if call[:2] == ["commit", 1]]
    assert [len(call[2]) for call in replayed] == [2, 4]
    assert difference(broker.url, decided.topic, expected(0, 60)) == NOTHING

    assert difference(broker.url, sending.topic, expected(0, 20)) == NOTHING
    assert sending.run(spark) == ""
    assert difference(broker.url, sending.topic, expected(0, 60)) == NOTHING

    assert repeated.is_at("sent.1")
    assert difference(broker.url, repeated.topic, expected(0, 60)) == NOTHING
    for pipeline, batches in ((decided, (0, 1, 1, 2)), (sending, (0, 1, 2)), (repeated, (0, 1, 2))):
        assert [call[:2] for call in pipeline.calls()] == [["commit", batch] for batch in batches]
        assert len({row["gid"] for row in rows(broker.url, pipeline.topic)}) == 3


@pytest.mark.full
@pytest.mark.timeout(500)
def test_executors_that_are_killed_while_they_send(broker: BrokerProcess, tmp_path: Path) -> None:
    """H of the fault table: real executors, each a JVM of its own. Their tasks are run again elsewhere."""
    pipeline = Pipeline(tmp_path / new_gid(), broker.url, total=40)
    pipeline.arm(sending_1="wait")
    conf = {"spark.executor.memory": "512m", "spark.python.daemon.module": "pyspark.daemon"}  # as executors have it
    with job(pipeline, master="local-cluster[2,1,512]", **conf) as running:
        running.until(lambda: pipeline.is_at("sending.1"))
        executors = _executors(running)
        assert len(executors) == 2
        for executor in executors:
            executor.kill()
        assert running.wait() == 0, running.tail()
    assert difference(broker.url, pipeline.topic, expected(0, 40)) == NOTHING


def _executors(running: Job) -> list[psutil.Process]:
    children = psutil.Process(running.jvm).children(recursive=True)
    alive = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in alive if any("CoarseGrainedExecutorBackend" in word for word in one.cmdline())]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_rows_in_are_rows_out_over_random_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    """One query, and 21 kills at random moments: of its JVM, of a Python worker (a task, the driver's commit or
    the source), of the broker. In the end every number that Spark has planned is there once."""
    chance = random.Random(SEED)
    kinds = ["jvm"] * 2 + ["worker"] * 7 + ["broker"] * 12
    chance.shuffle(kinds)
    pipeline = Pipeline(tmp_path / new_gid(), broker.url, total=10**9, perBatch=30)
    running = Job(pipeline, master="local[2,4]", endless=True)
    try:
        for kind in kinds:
            _wait_for_progress(pipeline, running)
            time.sleep(chance.random() * 0.5)
            if kind == "jvm":
                running.kill()
                pipeline.settings["splits"] = chance.choice([1, 2, 3])
                running = Job(pipeline, master="local[2,4]", endless=True)
            elif kind == "worker":
                _kill_one(running, chance)
            else:
                broker.kill()
                time.sleep(chance.random() * 0.2)
                broker.start()
        _finish(pipeline, running)
    finally:
        running.kill()
    end = pipeline.planned()
    assert difference(broker.url, pipeline.topic, expected(0, end)) == NOTHING
    assert end > 30 * len(kinds), "too little happened between the kills"


def _wait_for_progress(pipeline: Pipeline, running: Job) -> None:
    """Until one more batch is done: a kill of something that only starts proves nothing."""
    done = len(pipeline.logged("commits"))
    running.until(lambda: len(pipeline.logged("commits")) > done)


def _kill_one(running: Job, chance: random.Random) -> None:
    workers = running.workers()
    if workers:
        chance.choice(workers).kill()


def _finish(pipeline: Pipeline, running: Job) -> None:
    """Let the query come to rest: nothing new is planned, and what is planned is committed."""
    (pipeline.faults / "finish").touch()
    rested = 0.0

    def at_rest() -> bool:
        nonlocal rested
        if pipeline.logged("offsets")[-1:] != pipeline.logged("commits")[-1:]:
            rested = time.monotonic()
        return time.monotonic() - rested > 1.5

    rested = time.monotonic()
    running.until(at_rest)
