"""The cache: no old value survives a slow reader or a crash, and the two usual ways leave one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from example_support import Part, broken, modules_of, run

from servers import RedisServer

RUN = "examples/cache_consistency/run.py"
long = [pytest.mark.full, pytest.mark.fault]
RACE = "a slow reader leaves no old value"
CRASH = "a crash between commit and deletion leaves no old value"


class TestWhole:
    pytestmark = long

    def test_no_old_value_survives_whoever_is_killed(self, tmp_path: Path) -> None:
        code, result = run(RUN, tmp_path, "--seconds=5", "--kills=4", "--seed=5")
        assert (code, broken(result)) == (0, []), result["said"]
        assert result["kills"] == {"service": 3, "broker": 1, "redis": 1}
        assert list(tmp_path.glob("tallystick-cache-*")) == []  # it cleans up after itself

    @pytest.mark.parametrize(
        ("sabotage", "holds", "fails"), [("plain-set", CRASH, RACE), ("delete-after-commit", RACE, CRASH)]
    )
    def test_the_usual_ways_leave_an_old_value(self, sabotage: str, holds: str, fails: str, tmp_path: Path) -> None:
        options = f"--sabotage={sabotage}", "--seconds=1", "--kills=0", "--seed=5", "--patience=6"
        code, result = run(RUN, tmp_path, *options)
        assert code == 1
        assert fails in broken(result), result["said"]
        assert holds not in broken(result), result["said"]


# --- the cache by itself ---------------------------------------------------------------------------------------------


@pytest.fixture
def part() -> Iterator[Part]:
    with modules_of("cache_consistency") as load:
        yield load


@pytest.fixture
def cache(part: Part, redis: RedisServer) -> Iterator[Any]:
    with closing(redis.connect(decode_responses=True)) as client:
        client.flushall()
        times = part("cache").Times(lock=0.5, keep=5, live=60)
        with closing(part("cache").Cache(client, times)) as made:
            yield made


class Row:
    """A row that counts how often it was read, and can be slow."""

    def __init__(self, value: int) -> None:
        self.value, self.reads = value, 0
        self.has_read, self.go_on = threading.Event(), threading.Event()

    def load(self) -> int:
        self.reads += 1
        return self.value

    def load_slowly(self) -> int:
        value = self.load()
        self.has_read.set()
        assert self.go_on.wait(20)
        return value

    def slow_reader(self, cache: Any) -> threading.Thread:
        """One that has read the row, and has the lock."""
        reader = threading.Thread(target=lambda: cache.fetch("row", self.load_slowly))
        reader.start()
        assert self.has_read.wait(20)
        return reader

    def let_go(self, reader: threading.Thread) -> None:
        self.go_on.set()
        reader.join()


def test_a_value_is_read_once(cache: Any) -> None:
    row = Row(1)
    assert [cache.fetch("row", row.load) for _ in range(3)] == [1, 1, 1]
    assert (row.reads, cache.peek("row")) == (1, 1)


def test_a_reader_that_read_before_the_change_cannot_fill_the_entry(cache: Any) -> None:
    row = Row(1)
    reader = row.slow_reader(cache)
    row.value = 2
    cache.delete("row")
    row.let_go(reader)
    assert cache.peek("row") is None
    assert cache.fetch("row", row.load) == 2


def test_nor_can_it_once_another_one_has(cache: Any) -> None:
    row = Row(1)
    reader = row.slow_reader(cache)
    row.value = 2
    cache.delete("row")
    assert cache.fetch("row", row.load, strong=True) == 2
    row.let_go(reader)
    assert cache.peek("row") == 2


def test_nor_can_it_when_the_cache_was_lost_meanwhile(cache: Any, redis: RedisServer) -> None:
    row = Row(1)
    reader = row.slow_reader(cache)
    row.value = 2
    with closing(redis.connect()) as client:
        client.flushall()
    row.let_go(reader)
    assert cache.peek("row") is None


def test_the_plain_way_lets_it(part: Part, redis: RedisServer) -> None:
    """The negative control."""
    row = Row(1)
    with closing(redis.connect(decode_responses=True)) as client:
        client.flushall()
        plain = part("naive").PlainCache(client)
        reader = row.slow_reader(plain)
        row.value = 2
        plain.delete("row")
        row.let_go(reader)
        assert plain.fetch("row", row.load) == 1


def test_a_weak_read_takes_the_old_value_and_has_the_entry_filled(cache: Any) -> None:
    row = Row(1)
    cache.fetch("row", row.load)
    row.value = 2
    cache.delete("row")
    assert cache.fetch("row", row.load) == 1
    deadline = time.monotonic() + 10
    while cache.peek("row") != 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cache.fetch("row", row.load) == 2
    assert row.reads == 2


def test_a_strong_read_never_takes_the_old_value(cache: Any) -> None:
    row = Row(1)
    cache.fetch("row", row.load)
    row.value = 2
    cache.delete("row")
    assert cache.fetch("row", row.load, strong=True) == 2


def test_many_readers_of_a_missing_entry_read_the_row_once(cache: Any) -> None:
    row = Row(1)
    row.go_on.set()
    found: list[int] = []
    readers = [threading.Thread(target=lambda: found.append(cache.fetch("row", row.load_slowly))) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (found, row.reads) == ([1] * 8, 1)


def test_an_owner_that_died_holds_nobody_up(cache: Any) -> None:
    """Its lock ends by itself; whoever waits reads the row."""
    row = Row(1)
    reader = row.slow_reader(cache)
    assert cache.fetch("row", row.load, strong=True) == 1
    assert reader.is_alive()
    row.let_go(reader)


def test_to_delete_what_is_not_there_leaves_nothing(cache: Any, redis: RedisServer) -> None:
    cache.delete("row")
    with closing(redis.connect()) as client:
        assert client.exists("row") == 0
