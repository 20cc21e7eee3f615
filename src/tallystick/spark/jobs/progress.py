"""How far a Spark job has come, told while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_SECONDS = 1.0


@contextmanager
def parts_reported(spark: SparkSession, report: Callable[[str], None], doing: str) -> Iterator[None]:
    """While the block runs, report how many of the parts of the work are done."""
    report(doing)
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, report, doing, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(spark: SparkSession, report: Callable[[str], None], doing: str, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    last = ""
    while not ended.wait(_EVERY_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            stage = max(known, key=lambda one: one.stageId)
            text = f"{doing}: {stage.numCompletedTasks} of {stage.numTasks} parts"
            if text != last:
                report(text)
            last = text
