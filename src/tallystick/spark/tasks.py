"""Work of our own on Spark's executors: a function, and the items to call it with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tallystick.core.errors import TallystickError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
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
