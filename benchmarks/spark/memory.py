"""The broker's memory while ten readers read all of a topic at once, as Arrow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.processes import forget_peak, peak_mb, resident_mb
from benchmarks.spark.ground import QUEUES, Ground, fill
from tallystick.link import Link

READERS = 10
PIECE = 1 << 20


def run(ground: Ground) -> None:
    rows = ground.count(400_000)
    with ground.broker("memory", retention="30d") as broker:
        fill(broker.url, "rows", rows, 1_024)
        before = resident_mb(broker.pid)
        forget_peak(broker.pid)
        with ThreadPoolExecutor(READERS) as pool:
            read = list(pool.map(_read, [broker.url] * READERS))
        peak = peak_mb(broker.pid)
    if min(read) < rows * 1_024:
        raise ValueError(f"a reader got {min(read)} bytes, and there are {rows} rows of 1,024")
    ground.add("broker's memory before", before, "MB")
    ground.add(f"broker's memory, {READERS} readers at once, {rows:,} rows of 1,024 bytes each", peak, "MB")


def _read(url: str) -> int:
    """All queues, one after another; how many bytes came."""
    total = 0
    for queue in range(QUEUES):
        with Link(url, timeout=120) as link:
            end = link.get("topics", "rows")["ends"][queue]
            with link.arrow("topics", "rows", "queues", str(queue), "messages", offset=0, end=end) as answer:
                while piece := answer.read(PIECE):
                    total += len(piece)
    return total
