"""A crash at every step of a body's way to the disk and away from it: what was acknowledged is there whole, what was
not is whole or absent, the same request again does no harm, and no file is left over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from body_disk import BodyDisk, Steps, removed_now
from crash_engine import Crash

from stored_columns import committed, prepared, segments, shown, values_of
from tallystick.core.ops import DropParts
from tallystick.store import segments as segments_module
from tallystick.store.protocol import DeleteTopic, ExpireParts, PutTopic, TrimTo
from tallystick.store.rocksdb import RocksEngine, RocksStore, open_rocksdb

pytestmark = pytest.mark.fault

NOW = 1_700_000_000_000
Contents = dict[str, list[bytes]]
Act = Callable[[RocksStore], Any]
ALL_STEPS = {
    "before the file is made",
    "after the file is made",
    "before the directory is synced",
    "after the directory is synced",
    "after some bytes",
    "before fdatasync",
    "after fdatasync",
    "before the tree is written",
    "after the tree is written",
    "before the tree is flushed",
    "after the tree is flushed",
    "before unlink",
    "after unlink",
}


def op(one: Any, later: int = 0) -> Act:
    def act(store: RocksStore) -> None:
        (result,) = store.write([one], NOW + later).results
        assert getattr(result, "error", None) in (None, "not_found"), result

    return act


def remove(store: RocksStore) -> None:
    removed_now(store._engine)  # type: ignore[arg-type]


A, B = (sorted(values_of("a", name)) for name in ("a1", "a2"))
# What is done, and what is seen once it is done. Each may be done again.
SCRIPT: list[tuple[Act, Contents]] = [
    (op(PutTopic("a", 1)), {"a": []}),
    (op(PutTopic("b", 1)), {"a": [], "b": []}),
    (op(prepared("a", "a1")), {"a": [], "b": []}),
    (op(committed(1, "a1")), {"a": A, "b": []}),
    (op(prepared("b", "b1")), {"a": A, "b": []}),
    (op(prepared("a", "a2")), {"a": A, "b": []}),
    (op(committed(2, "b1", "a2")), {"a": sorted(A + B), "b": values_of("b", "b1")}),
    (op(prepared("a", "dropped")), {"a": sorted(A + B), "b": values_of("b", "b1")}),
    (op(DropParts(["dropped"])), {"a": sorted(A + B), "b": values_of("b", "b1")}),
    (op(TrimTo("a", {0: len(A)}, 1_000)), {"a": B, "b": values_of("b", "b1")}),
    (remove, {"a": B, "b": values_of("b", "b1")}),
    (op(prepared("b", "expired")), {"a": B, "b": values_of("b", "b1")}),
    (op(ExpireParts(100), 10**12), {"a": B, "b": values_of("b", "b1")}),
    (op(DeleteTopic("b")), {"a": B}),
    (remove, {"a": B}),
]


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The halves of a body lie in two segments at times, and what is dead is removed only when the script says so."""
    monkeypatch.setattr(segments_module, "SEGMENT_BYTES", 30_000)
    monkeypatch.setattr(RocksEngine, "_reclaim", lambda engine: None)


def begun(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RocksStore, BodyDisk, Steps]:
    steps = Steps()
    disk = BodyDisk(directory, steps)
    disk.install(monkeypatch)
    return open_rocksdb(directory), disk, steps


def play(store: RocksStore, script: list[tuple[Act, Contents]]) -> int:
    """How many acts were done before the crash."""
    for done, (act, _) in enumerate(script):
        try:
            act(store)
        except Crash:
            return done
    return len(script)


def crash_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int, power_cut: bool, skip_sync: bool = False
) -> None:
    with monkeypatch.context() as patched:
        store, disk, steps = begun(tmp_path / f"{crash_at}", patched)
        disk.skip_sync, steps.crash_at = skip_sync, crash_at
        done = play(store, SCRIPT)
        left = disk.left(tmp_path / f"{crash_at}-left", power_cut)
        steps.crash_at = 0
        store.close()
    told = f"step {crash_at}: {steps.names[crash_at - 1]}"
    assert done < len(SCRIPT), told
    store = open_rocksdb(left)
    try:
        before: Contents = SCRIPT[done - 1][1] if done else {}
        assert shown(store) in (before, SCRIPT[done][1]), told
        assert play(store, SCRIPT[done:]) == len(SCRIPT) - done
        assert shown(store) == SCRIPT[-1][1], told
    finally:
        store.close()
    store = open_rocksdb(left)
    try:
        op(DeleteTopic("a"))(store)
        remove(store)
        assert segments(left) == [], told
    finally:
        store.close()


def steps_of_a_quiet_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with monkeypatch.context() as patched:
        store, _, steps = begun(directory, patched)
        for act, seen in SCRIPT:
            act(store)
            assert shown(store) == seen
        store.close()
    return list(steps.names)


def test_the_script_takes_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = steps_of_a_quiet_run(tmp_path / "quiet", monkeypatch)
    assert set(names) == ALL_STEPS
    # Bytes are durable before the tree is told of them, and a name before what lies under it.
    assert names.index("after fdatasync") < names.index("before the tree is written", names.index("after some bytes"))
    assert names.index("after the directory is synced") < names.index("after some bytes")


@pytest.mark.full
def test_a_crash_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third is a kill, the others are power cuts, which leave less."""
    for crash_at in range(1, len(steps_of_a_quiet_run(tmp_path / "quiet", monkeypatch)) + 1):
        crash_and_go_on(tmp_path, monkeypatch, crash_at, power_cut=crash_at % 3 > 0)


@pytest.mark.full
@pytest.mark.parametrize("power_cut", [False, True], ids=["killed", "power cut"])
def test_a_crash_at_each_kind_of_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power_cut: bool) -> None:
    names = steps_of_a_quiet_run(tmp_path / "quiet", monkeypatch)
    for kind in sorted(ALL_STEPS):
        last = len(names) - names[::-1].index(kind)
        crash_and_go_on(tmp_path, monkeypatch, last, power_cut)


def test_a_power_cut_before_a_dead_segment_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = steps_of_a_quiet_run(tmp_path / "quiet", monkeypatch)
    crash_and_go_on(tmp_path, monkeypatch, names.index("before unlink") + 1, power_cut=True)


def test_bodies_that_are_not_synced_would_be_found_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = steps_of_a_quiet_run(tmp_path / "quiet", monkeypatch)
    with pytest.raises(Exception, match="only 0 are there"):
        crash_and_go_on(tmp_path, monkeypatch, names.index("before unlink") + 1, power_cut=True, skip_sync=True)
