"""Work of our own in Spark's processes: given out, watched, and its errors brought back as what they are."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tallystick.core.errors import TallystickError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[str], None]  # how far the work has come, in words
_EVERY_SECONDS = 1.0
# The last line of a traceback of Python, which Spark hands on as text.
_RAISED = re.compile(r"^(tallystick(?:\.\w+)+)\.(\w+): (.*?)(?:\n *SQLSTATE|\n\tat |\Z)", re.MULTILINE | re.DOTALL)


class TaskWorkers(Protocol):
    """Whatever can call a function with many items, in any order and place, and more than once for an item."""

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in the order of the items. An error of ours is raised as it was raised there."""
        ...


class SparkWorkers:
    """One task for each item. Works on a Spark Connect session too, which has no RDDs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if not items:
            return []
        numbers = self._spark.range(0, len(items), 1, len(items))
        rows = numbers.mapInArrow(_task(work, items), "number long, result binary").collect()
        return [_result(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]


def _task(work: Callable[[T], Any], items: Sequence[T]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            numbers = batch.column(0).to_pylist()
            results = [_called(work, items[number]) for number in numbers]
            yield pa.record_batch({"number": pa.array(numbers, pa.int64()), "result": pa.array(results, pa.binary())})

    return run


def _called(work: Callable[[T], Any], item: T) -> bytes:
    """Errors of ours travel as results: Spark would wrap them up in text, and run the task again for nothing."""
    from pyspark.serializers import CPickleSerializer

    try:
        outcome = work(item)
    except TallystickError as error:
        outcome = error
    return bytes(CPickleSerializer().dumps(outcome))  # type: ignore[no-untyped-call]


def _result(encoded: bytes) -> Any:
    from pyspark.serializers import CPickleSerializer

    outcome = CPickleSerializer().loads(bytes(encoded))  # type: ignore[no-untyped-call]
    if isinstance(outcome, TallystickError):
        raise outcome
    return outcome


# --- how far it has come ----------------------------------------------------------------------------------------


def quiet(_: str) -> None:
    """Nobody wants to hear how far it has come."""


@contextmanager
def parts_reported(spark: SparkSession, report: Report, doing: str) -> Iterator[None]:
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


def _watch(spark: SparkSession, report: Report, doing: str, ended: threading.Event) -> None:
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


# --- what went wrong there --------------------------------------------------------------------------------------


@contextmanager
def told_by_tasks() -> Iterator[None]:
    """Around actions of Spark: what a task or a reader of ours raised comes out without Spark's wrapping."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        ours = raised_there(str(error))
        if ours is None:
            raise
        raise ours from None


def raised_there(text: str) -> TallystickError | None:
    """The error of ours that a message of Spark holds, if it does."""
    found = _RAISED.findall(text)
    if not found:
        return None
    module, name, detail = found[-1]
    try:
        kind = getattr(importlib.import_module(module), name)
        made = kind(detail)
    except (ImportError, AttributeError, TypeError):
        made = TallystickError(detail)
    return made if isinstance(made, TallystickError) else TallystickError(detail)
