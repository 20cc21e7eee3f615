"""A store that was copied to another engine, and back: everything that a store shows is the same, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines import START, Place
from filled import LEASED, PENDING, contents, fill

import shared_stores
from shared_stores import SHARED
from tallystick.core.calls import CallResult
from tallystick.core.ops import Ack, Commit
from tallystick.store.copying import content
from tallystick.store.copying.places import Copied, CopyPlace, CopySettings, copy_store
from tallystick.store.protocol import FinishCalls, StoreSettings
from tallystick.store.rocksdb import open_rocksdb

TEST_SERVERS = CopySettings(lease_ms=3_000, allow_weak_durability=True)  # they do not wait for their disk


def copied(source: CopyPlace, target: CopyPlace) -> Copied:
    steps: list[int] = []
    made = copy_store(source, target, TEST_SERVERS, steps.append, steps.append)
    assert made.copied == made.read_back
    assert steps[-1] == made.copied.keys > 100
    return made


def in_directory(path: Path) -> Place:
    place = Place(lambda known: open_rocksdb(path, known), StoreSettings())
    place.now = START + 10_000
    return place


@pytest.mark.parametrize("engine", SHARED)
def test_a_store_is_the_same_on_another_engine_and_back_again(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "PAGE_KEYS", 17)  # so that there are many pages
    shared_stores.start(engine, request)
    url, number = shared_stores.url_at(engine), shared_stores.new_number()
    original = in_directory(tmp_path / "original")
    receipt = fill(original)
    wanted = contents(original.store)
    assert all(wanted.values())
    assert all(wanted["tables"].values())
    original.store.close()

    there = copied(CopyPlace(str(tmp_path / "original")), CopyPlace(url, number))
    shared = Place(shared_stores.opener(url, number), StoreSettings())
    assert contents(shared.store) == wanted
    shared.store.close()

    back = copied(CopyPlace(url, number), CopyPlace(str(tmp_path / "back")))
    assert back == there
    again = in_directory(tmp_path / "back")
    assert contents(again.store) == wanted
    goes_on(again, receipt)
    again.store.close()


def goes_on(place: Place, receipt: str) -> None:
    """What was begun before the copy is finished after it."""
    place.do(Ack("g", [receipt]))
    place.do(Commit(PENDING))
    assert {"a", "b"} <= set(place.values())
    place.do(FinishCalls([CallResult(LEASED, 0, "success")]))
    calls = place.store.calls(LEASED)
    assert calls is not None
    assert [one.state for one in calls.calls] == ["done"]
