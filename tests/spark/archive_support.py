"""What the tests of archive and replay share. Run as a program, it is an archive run that kills itself at a step."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.core.ops import Commit, Prepare, Send
from tallystick.link import Link
from tallystick.spark.archive.layout import Archive
from tallystick.spark.jobs.archive import ArchiveSettings, ArchiveSummary, archive_with

T = TypeVar("T")
R = TypeVar("R")


class Here:
    """Workers without Spark: everything happens in this process."""

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return [work(item) for item in items]


def fill(client: Any, topic: str, count: int, first: int = 0) -> None:
    """Messages of every shape: with and without key, headers, tag and transaction; empty and large values."""
    plain, transactional = [], []
    for number in range(first, first + count):
        message = OutgoingMessage(
            topic,
            b"" if number % 11 == 0 else os.urandom(number % 300) + str(number).encode(),
            None if number % 5 == 0 else f"key-{number % 17}",
            {"n": str(number), "ü": ""} if number % 3 == 0 else None,
            "red" if number % 2 else None,
        )
        (transactional if number % 4 == 0 else plain).append(message)
    for at in range(0, len(plain), 500):
        client.do(Send(plain[at : at + 500]))
    for at in range(0, len(transactional), 500):
        gid = f"g{secrets.token_hex(8)}"
        client.do(Prepare(gid, "tests", transactional[at : at + 500]))
        client.do(Commit(gid))


def rows_of(messages: Sequence[StoredMessage]) -> list[tuple[Any, ...]]:
    """Messages as rows that can be sorted and compared, duplicates included."""
    return sorted(
        (
            m.queue,
            m.offset,
            m.key,
            m.value,
            tuple(sorted((m.headers or {}).items())),
            m.tag,
            m.gid,
            m.sequence,
            m.stored_at,
            m.born_at,
        )
        for m in messages
    )


def archived_rows(path: Path, topic: str) -> list[tuple[Any, ...]]:
    """Everything that counts in an archive, in the same form."""
    archive = Archive(str(path))
    found: list[tuple[Any, ...]] = []
    for queue, ranges in archive.ranges(topic).items():
        for start, end in ranges:
            for batch in archive.read(topic, queue, start, end):
                found += map(_row, batch.to_pylist())
    return sorted(found)


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    times = [round(row[name].timestamp() * 1000) for name in ("timestamp", "born_at")]
    headers = tuple(sorted(row["headers"] or []))
    return (
        *(row[name] for name in ("queue", "offset", "key", "value")),
        headers,
        row["tag"],
        row["gid"] or "",
        row["sequence"],
        *times,
    )


def run(url: str, path: Path | str, topic: str, **rest: Any) -> ArchiveSummary:
    return archive_with(Here(), settings(url, path, topic, **rest), rest.pop("report", lambda _: None))


def settings(url: str, path: Path | str, topic: str, **rest: Any) -> ArchiveSettings:
    rest.pop("report", None)
    given: dict[str, Any] = {"older_than_ms": 0, "patience_seconds": 5.0, "topics": (topic,), **rest}
    return ArchiveSettings(url=url, path=str(path), **given)


def run_and_die(url: str, path: Path, topic: str, step: str, **rest: Any) -> None:
    """A run in a process of its own that is killed by SIGKILL when it reports the step."""
    done = subprocess.run(
        [sys.executable, __file__, url, str(path), topic, step, *(f"{name}={value}" for name, value in rest.items())],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr)


def starts_of(url: str, topic: str) -> list[int]:
    with Link(url) as link:
        starts: list[int] = link.get("topics", topic)["starts"]
        return starts


def batch_of(schema: pa.Schema, times_ms: list[int], first: int = 0) -> pa.RecordBatch:
    """A record batch as the broker gives it, of messages stored at these times."""
    count = len(times_ms)
    times = pa.array(times_ms, pa.int64()).cast(schema.field("timestamp").type)
    columns = {
        "topic": pa.repeat("t", count),
        "queue": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "key": pa.nulls(count, pa.string()),
        "value": pa.array([str(number).encode() for number in range(first, first + count)]),
        "headers": pa.nulls(count, schema.field("headers").type),
        "tag": pa.nulls(count, pa.string()),
        "gid": pa.nulls(count, pa.string()),
        "sequence": pa.repeat(pa.scalar(0, pa.int32()), count),
        "timestamp": times,
        "born_at": times,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _main(url: str, path: str, topic: str, step: str, *rest: str) -> None:
    def report(text: str) -> None:
        if step and f": {step}" in text:
            _die()

    given = {name: int(value) for name, value in (one.split("=") for one in rest)}
    if not step:
        # From a thread: a kill that comes while Arrow writes or the disk syncs, not only between two lines of Python.
        threading.Timer(random.uniform(0.001, given.pop("random_ms") / 1000), _die).start()
    archive_with(Here(), settings(url, Path(path), topic, **given), report)
    _die()  # a run that was done before its time was up


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main(*sys.argv[1:])
