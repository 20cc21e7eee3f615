"""The two moments that leave an old value in a cache, brought about on purpose."""

import threading
import time
from collections.abc import Callable

import traffic
from catalogue import Catalogue, Row, cache_key
from stage.traps import Traps

from tallystick.demo.processes import Crew

LONG_SECONDS = 30.0


def slow_reader(catalogue: Catalogue, product: int) -> tuple[Row, Row]:
    """A reader has read the row and is slow to put it into the cache; the row changes, and the copy is deleted.

    Returns what the cache says afterwards, and what is true.
    """
    has_read, go_on = threading.Event(), threading.Event()

    def slow_load() -> Row:
        row = catalogue.load(product)
        has_read.set()
        go_on.wait(LONG_SECONDS)
        return row

    catalogue.cache.delete(cache_key(product))
    reader = threading.Thread(target=lambda: catalogue.cache.fetch(cache_key(product), slow_load, strong=True))
    reader.start()
    has_read.wait(LONG_SECONDS)
    catalogue.write(product, 120)
    go_on.set()
    reader.join()
    return catalogue.read(product), catalogue.load(product)


def crash_after_commit(
    url: str, catalogue: Catalogue, product: int, crew: Crew, traps: Traps, patience: float
) -> tuple[Row, Row, float]:
    """The service dies when its row is committed, before anybody was told to delete the copy. Returns what the cache
    says in the end, what is true, and how long it took until they were the same."""
    before = catalogue.read(product)
    (service,) = crew.of("service")
    traps.set("after-commit")
    traffic.put(url, product, before["price"] + 20)
    _until(lambda: not service.running, LONG_SECONDS)
    crew.kill(service)  # it is dead already; this counts it and starts the next
    began = time.monotonic()
    _until(lambda: catalogue.read(product)["version"] > before["version"], patience)
    return catalogue.read(product), catalogue.load(product), time.monotonic() - began


def _until(happened: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
