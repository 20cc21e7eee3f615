"""Runs the sections one after another; figures are for the reader and never make it fail."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from tests.servers import postgres_server

from benchmarks.report import Report
from benchmarks.rounds import ROUNDS
from benchmarks.spark import archive, backlog, judge, kafka, memory, sink, source
from benchmarks.spark.ground import Ground
from benchmarks.spark.kafka import maven
from tallystick.spark.session import job_session

SECTIONS: dict[str, Callable[[Ground], None]] = {
    "source": source.run,
    "idle": source.run_idle,
    "memory": memory.run,
    "sink": sink.run,
    "archive": archive.run,
    "checkback": backlog.run,
    "reconcile": judge.run,
}
# Runs only where it is asked for: it fetches what is not ours.
KAFKA = "kafka"


def main() -> int:
    known = {**SECTIONS, KAFKA: kafka.run}
    parser = argparse.ArgumentParser(prog="make bench-spark ARGS=...", description=__doc__)
    listed = f"{', '.join(SECTIONS)} (all of these by default), and {KAFKA}, which needs `mvn`"
    parser.add_argument("sections", nargs="*", metavar="section", help=listed)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, for a quick look: 0.05")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each side beside Kafka: {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    given = parser.parse_args()
    unknown = sorted(set(given.sections) - set(known))
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(known)}")
    console = Console(stderr=given.json)
    report = Report(lambda text: console.print(f"[dim]{text}[/]"))
    sections = given.sections or list(SECTIONS)
    jars = _jars(console, sections)
    if sections:
        with _ground(report, jars, given.scale, given.rounds) as ground:
            for name in sections:
                console.print(f"[bold]{name}[/]")
                known[name](ground)
    if given.json:
        print(report.as_json())
    elif sections:
        report.show(console)
    return 0


def _jars(console: Console, sections: list[str]) -> list[str]:
    """What Spark has to be started with. Where Kafka cannot be had, its section is left out, and that is said."""
    if KAFKA not in sections:
        return []
    try:
        return maven.jars().in_spark
    except maven.MavenMissing as missing:
        console.print(f"[bold]{KAFKA}[/] is left out: {missing}", soft_wrap=True)
        sections.remove(KAFKA)
        return []


@contextmanager
def _ground(report: Report, jars: list[str], scale: float, rounds: int) -> Iterator[Ground]:
    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4", "spark.log.level": "ERROR"}
    with (
        tempfile.TemporaryDirectory(prefix="tallystick-bench-") as directory,
        postgres_server(max_wal_size="4GB") as server,
        job_session("bench", "local[2]", jars, conf) as spark,
    ):
        yield Ground(Path(directory), report, scale, rounds, spark, server)


if __name__ == "__main__":
    sys.exit(main())
