"""The archive job, verification and trim included."""

from __future__ import annotations

from benchmarks.spark.ground import Ground, fill
from tallystick.spark.jobs.archive import ArchiveSettings, run_archive


def run(ground: Ground) -> None:
    rows = ground.count(1_000_000)
    with ground.broker("archive", retention="30d") as broker:
        fill(broker.url, "warm", 20_000, 1_024)
        fill(broker.url, "old", rows, 1_024)
        for topic in ("warm", "old"):
            settings = ArchiveSettings(
                url=broker.url, path=str(ground.directory / "archived"), topics=(topic,), older_than_ms=0
            )
            summary = run_archive(ground.spark, settings)
        (done,) = summary.topics
        if (done.rows, done.verified) != (rows, rows):
            raise ValueError(f"archived {done.rows} and verified {done.verified} of {rows} rows")
        ground.add("archive, 1,024-byte messages, verified and trimmed", rows / summary.seconds, "rows/s", 100_000)
