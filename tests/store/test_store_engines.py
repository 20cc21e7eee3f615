"""The two engines are the same sorted map, whatever is written in whatever units."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.store.kv.engine import AREAS, Area, Changes, Engine
from tallystick.store.memory import MemoryEngine
from tallystick.store.rocksdb import RocksEngine

keys = st.binary(min_size=1, max_size=3)
areas = st.sampled_from(AREAS)
ranges = st.tuples(areas, keys, keys)
puts = st.tuples(areas, keys, st.none() | st.binary(max_size=5))
Unit = tuple[list[tuple[Area, bytes, bytes]], list[tuple[Area, bytes, bytes | None]]]
units = st.lists(st.tuples(st.lists(ranges, max_size=2), st.lists(puts, max_size=8)), max_size=8)


def changes_of(unit: Unit) -> Changes:
    changes = Changes()
    changes.ranges = [(area, min(one, other), max(one, other)) for area, one, other in unit[0]]
    for area, key, value in unit[1]:
        changes.keys[area][key] = value
    return changes


def seen(engine: Engine, area: Area, start: bytes, end: bytes) -> tuple[list[tuple[bytes, bytes]], ...]:
    forward = list(engine.scan(area, start, end))
    assert list(engine.scan_back(area, start, end)) == forward[::-1]
    assert all(engine.get(area, key) == value for key, value in forward)
    near = sorted({other for key, _ in forward for other in (key, key + b"\0", key[:-1])} | {start, end})
    assert list(engine.get_many(area, near)) == [engine.get(area, key) for key in near]
    assert list(engine.get_many(area, near[::3])) == [engine.get(area, key) for key in near[::3]]
    return (forward,)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(units, st.lists(ranges, min_size=1, max_size=5))
def test_both_engines_hold_the_same(history: list[Unit], looks: list[tuple[Area, bytes, bytes]]) -> None:
    with tempfile.TemporaryDirectory(prefix="tallystick-") as directory:
        memory, rocks = MemoryEngine(), RocksEngine(Path(directory) / "db")
        try:
            for unit in history:
                for engine in (memory, rocks):
                    engine.write(changes_of(unit))
            for area, one, other in [*looks, *((area, b"\0", b"\xff" * 4) for area in AREAS)]:
                start, end = min(one, other), max(one, other)
                assert seen(memory, area, start, end) == seen(rocks, area, start, end)
            rocks.close()
            rocks = RocksEngine(Path(directory) / "db")
            for area in AREAS:
                assert list(memory.scan(area, b"\0", b"\xff" * 4)) == list(rocks.scan(area, b"\0", b"\xff" * 4))
        finally:
            rocks.close()


def test_a_unit_is_seen_as_a_whole_or_not_at_all_by_a_scan_that_began_before() -> None:
    with tempfile.TemporaryDirectory(prefix="tallystick-") as directory:
        engine = RocksEngine(Path(directory) / "db")
        try:
            first, second = Changes(), Changes()
            first.keys["index"] = {bytes([number]): b"old" for number in range(10)}
            second.keys["index"] = {bytes([number]): b"new" for number in range(20)}
            engine.write(first)
            scan = engine.scan("index", b"\0", b"\xff")
            begun = [next(scan)]
            engine.write(second)
            assert {value for _, value in begun + list(scan)} == {b"old"}
            assert {value for _, value in engine.scan("index", b"\0", b"\xff")} == {b"new"}
        finally:
            engine.close()
