"""Runs the sections one after another; figures are for the reader and never make it fail."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from tests.servers import postgres_server

from benchmarks.report import Report
from benchmarks.spark import archive, backlog, judge, sink, source
from benchmarks.spark.ground import Ground
from tallystick.spark.session import job_session

SECTIONS: dict[str, Callable[[Ground], None]] = {
    "source": source.run,
    "idle": source.run_idle,
    "sink": sink.run,
    "archive": archive.run,
    "checkback": backlog.run,
    "reconcile": judge.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-spark ARGS=...", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"{', '.join(SECTIONS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, for a quick look: 0.05")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    given = parser.parse_args()
    unknown = sorted(set(given.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    console = Console(stderr=given.json)
    report = Report(lambda text: console.print(f"[dim]{text}[/]"))
    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4", "spark.log.level": "ERROR"}
    with (
        tempfile.TemporaryDirectory(prefix="tallystick-bench-") as directory,
        postgres_server(max_wal_size="4GB") as server,
        job_session("bench", "local[2]", conf=conf) as spark,
    ):
        for name in given.sections or SECTIONS:
            console.print(f"[bold]{name}[/]")
            SECTIONS[name](Ground(Path(directory), report, given.scale, spark, server))
    if given.json:
        print(report.as_json())
    else:
        report.show(console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
