"""A streaming query from the numbers to a sink that breaks on demand: started anew from its checkpoint, watched and
judged. As a program it runs such queries in a JVM of its own, which a test may kill."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from stream_runs import begin, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

QUICK_START = {"spark.log.level": "OFF", "spark.python.daemon.module": "warm_workers"}


class Pipeline:
    """One query in its directory: its checkpoint and its faults. Its topic is named after the directory."""

    def __init__(self, directory: Path, url: str, sink: str = "faulty", **settings: Any) -> None:
        self.directory, self.url, self.sink = directory, url, sink
        self.settings = {"total": 60, "perBatch": 20, "splits": 2, **settings}
        self.sink_options: dict[str, str] = {}
        self.faults = directory / "faults"
        self.faults.mkdir(parents=True, exist_ok=True)

    @property
    def topic(self) -> str:
        return f"out-{self.directory.name}"

    def start(self, spark: SparkSession, available_now: bool = True, rows: DataFrame | None = None) -> StreamingQuery:
        """Start the query from its checkpoint, with the numbers or other rows as its input."""
        numbers = self.numbers(spark)
        writer = (rows or numbers).writeStream.format(self.sink).option("faults", str(self.faults))
        writer = writer.option("url", self.url).option("topic", self.topic).options(**self.sink_options)
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return begin((writer.trigger(availableNow=True) if available_now else writer).start)

    def numbers(self, spark: SparkSession) -> DataFrame:
        """Its input. The session knows the formats of the tests from here on."""
        import sink_support_faults

        for known in sink_support_faults.FORMATS:
            spark.dataSource.register(known)
        source = spark.readStream.format("numbers").option("faults", str(self.faults))
        return source.options(**self.settings).load()

    def run(self, spark: SparkSession, rows: DataFrame | None = None) -> str:
        """Run what is there to the end; what went wrong, or an empty string."""
        from pyspark.errors import StreamingQueryException

        try:
            run_to_end(lambda: self.start(spark, rows=rows))
        except StreamingQueryException as error:
            return str(error)
        return ""

    def arm(self, **faults: str) -> None:
        """Put faults in place: `arm(committed_1="raise")` strikes once batch 1 has been committed."""
        for point, fault in faults.items():
            (self.faults / point.replace("_", ".")).write_text(fault)

    def is_at(self, point: str) -> bool:
        return (self.faults / f"{point}.reached").exists()

    def reached(self, point: str, seconds: float = 150) -> None:
        wait_for(lambda: self.is_at(point), seconds, f"{point} was not reached")

    def go_on(self, point: str) -> None:
        (self.faults / f"{point}.go").touch()

    def calls(self) -> list[list[Any]]:
        """What Spark asked of the sink on its driver: [commit or abort, batch, messages]."""
        log = self.faults / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def logged(self, log: str) -> list[int]:
        """The batches in Spark's own `offsets` or `commits` log."""
        directory = self.directory / "checkpoint" / log
        return sorted(int(path.name) for path in directory.glob("[0-9]*")) if directory.exists() else []

    def planned(self) -> int:
        """Up to which number Spark has planned its batches."""
        last = self.directory / "checkpoint" / "offsets" / str(self.logged("offsets")[-1])
        return int(json.loads(last.read_text().splitlines()[-1])["at"])


def wait_for(condition: Any, seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


# --- in a JVM of its own ---------------------------------------------------------------------------------------------


class Job:
    """Pipelines in a process with a JVM of its own."""

    def __init__(self, *pipelines: Pipeline, master: str = "local[2]", endless: bool = False, **conf: str) -> None:
        directory = pipelines[0].directory
        self.log = directory / "job.log"
        self._ready = directory / "jvm"
        self._ready.unlink(missing_ok=True)
        given = {
            "pipelines": [[str(one.directory), one.url, one.sink, one.settings] for one in pipelines],
            "ready": str(self._ready),
            "master": master,
            "endless": endless,
            "conf": {**QUICK_START, **conf},
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(given)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore"},
            )

    @property
    def jvm(self) -> int:
        """The process id of the JVM, once it is up."""
        self.until(self._ready.exists)
        return int(self._ready.read_text())

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def until(self, happened: Callable[[], bool], seconds: float = 200) -> None:
        wait_for(lambda: happened() or self.ended, seconds, "it did not happen in time")
        assert happened(), f"the job has ended: {self.tail()}"

    def workers(self) -> list[psutil.Process]:
        """The Python processes that the JVM has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.jvm).children(recursive=True)
            return [one for one in children if "python" in one.name()]
        return []

    def kill(self) -> None:
        """kill -9 of the JVM; what it started ends with it, and so does the program that waits for it."""
        orphans = self.workers()
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.jvm).kill()
        self.process.kill()
        self.process.wait(60)
        for orphan in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()

    def wait(self, seconds: float = 200) -> int:
        return self.process.wait(seconds)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextlib.contextmanager
def job(*pipelines: Pipeline, master: str = "local[2]", **conf: str) -> Iterator[Job]:
    started = Job(*pipelines, master=master, **conf)
    try:
        yield started
    finally:
        if not started.ended:
            started.kill()


def main(given: dict[str, Any]) -> None:
    from tallystick.spark.session import job_session

    pipelines = [Pipeline(Path(place), url, sink, **settings) for place, url, sink, settings in given["pipelines"]]
    with job_session("sink", master=given["master"], conf=given["conf"]) as spark:
        pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        ready = Path(given["ready"])
        ready.with_suffix(".new").write_text(str(pid))
        ready.with_suffix(".new").rename(ready)
        if not given["endless"]:
            for query in [_under_way(pipeline, spark) for pipeline in pipelines]:
                query.awaitTermination()
            return
        while True:  # a worker was killed, say; until the test ends this JVM
            with contextlib.suppress(Exception):
                pipelines[0].start(spark, available_now=False).awaitTermination()


def _under_way(pipeline: Pipeline, spark: SparkSession) -> StreamingQuery:
    """Started, and its first batch is done: a query's Python process has ten seconds to come up, beside no other."""
    query = pipeline.start(spark)
    wait_for(lambda: pipeline.logged("commits") or not query.isActive, 200, "the query does not begin")
    return query


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
