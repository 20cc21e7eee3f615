"""The engine over a fenced server: what is told is so, whatever is lost on the way."""

from __future__ import annotations

import itertools

import pytest
from fenced_memory import Fault, FencedMemory

from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, OpResult, Prepare, Send
from tallystick.store.kv.engine import Changes, EngineFailed, Superseded
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared import engine as shared_engine
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import SharedStore

NOW = 1_700_000_000_000


def opened(server: FencedMemory, owner: str = "one") -> SharedStore:
    return SharedStore(server, server.claim(owner).epoch, StoreSettings())


def unit(**values: str) -> Changes:
    changes = Changes()
    changes.keys["index"] = {key.encode(): value.encode() for key, value in values.items()}
    return changes


def prepare(gid: str) -> Prepare:
    return Prepare(gid, "shop", [OutgoingMessage("orders", gid.encode())])


# --- writes whose answer is lost -------------------------------------------------------------------------------------

FAULTS: tuple[Fault | None, ...] = (None, "lost", "lost answer", "late")


@pytest.mark.parametrize("faults", [*itertools.product(FAULTS, repeat=3)], ids=str)
def test_a_unit_is_carried_out_once_and_told_as_it_is(faults: tuple[Fault | None, ...]) -> None:
    """Whatever three questions of a write meet: a write that returns is there once, one that raises leaves the store to
    find out, and nothing that comes in late is added to what was read."""
    server = FencedMemory()
    store = opened(server)
    before = len(server.applied)
    server.faults.extend([None, *faults])  # the first question is a look at what was foreseen
    told = True
    try:
        store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
    except StorageFailed:
        told = False
        server.faults.clear()
        assert store.recover() is not None
    there = store.transaction("g") is not None
    assert there or not told
    server.arrive()
    assert len(set(server.applied[before:])) == len(server.applied[before:]), "a unit number twice"
    assert (store.transaction("g") is not None) == there, "what was found out did not hold"
    server.faults.clear()
    (result,) = store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW).results
    assert isinstance(result, OpResult)
    assert result.duplicate == there
    view = store.topic("orders")
    assert view is not None
    assert sum(view.ends) == 1


def test_no_retry_begins_after_the_limit_of_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try may have waited for a server that does not answer."""
    server = FencedMemory()
    store = opened(server)
    monkeypatch.setattr(shared_engine, "OUTAGE_SECONDS", -1.0)
    server.faults.extend(["lost", None])
    with pytest.raises(StorageFailed):
        store.transaction("g")
    assert list(server.faults) == [None]
    server.faults.extend(["lost", None])  # the first question of the write is a look at what was foreseen
    with pytest.raises(StorageFailed):
        store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
    assert list(server.faults) == [None]
    server.faults.clear()
    monkeypatch.undo()
    assert store.recover() is not None


def test_a_unit_that_was_given_up_cannot_come_in_behind_what_was_read_anew() -> None:
    server = FencedMemory()
    store = opened(server)
    server.faults.extend([None, "late", "lost", "lost"])
    with pytest.raises(StorageFailed, match="shared store cannot be used"):
        store.write([Send([OutgoingMessage("orders", b"lost")], "lost")], NOW)
    assert store.recover() is not None
    assert server.arrive() == [False]
    store.write([Send([OutgoingMessage("orders", b"next")], "next")], NOW)
    assert store.transaction("lost") is None
    assert store.transaction("next") is not None


def test_while_the_server_is_away_nothing_is_told_and_it_recovers_by_itself() -> None:
    server = FencedMemory()
    store = opened(server)
    server.faults.extend(["lost"] * 9)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="cut before"):
            store.write([prepare("t")], NOW)
    assert store.failure() is not None
    with pytest.raises(StorageFailed):
        store.transaction("t")
    assert store.recover() is None
    server.faults.clear()
    assert store.recover() is not None
    assert store.write([prepare("t")], NOW).results == [None]


def test_a_look_tries_again_and_fails_for_the_one_who_looked_alone() -> None:
    server = FencedMemory()
    store = opened(server)
    store.write([prepare("t")], NOW)
    server.faults.extend(["lost", "lost"])
    assert store.transaction("unknown") is None
    server.faults.extend(["lost"] * 3)
    with pytest.raises(StorageFailed, match="cut before"):
        store.transaction("unknown")
    assert store.failure() is None, "a reader's bad luck does not stop the store"
    assert store.write([Commit("t")], NOW).results == [None]


# --- another owner ---------------------------------------------------------------------------------------------------


def test_an_owner_that_was_superseded_writes_nothing_and_never_again() -> None:
    server = FencedMemory()
    first = opened(server, "one")
    first.write([prepare("t")], NOW)
    second = opened(server, "two")
    before = dict(server.kept._areas["tx"])
    with pytest.raises(StorageFailed, match=r"another owner since: two, with epoch 2") as refused:
        first.write([Commit("t")], NOW)
    assert isinstance(refused.value.__cause__, Superseded)
    assert server.kept._areas["tx"] == before
    assert first.recover() is None
    with pytest.raises(StorageFailed, match="another owner"):
        first.write([prepare("u")], NOW)
    assert second.write([Commit("t")], NOW).results == [None]


def test_an_owner_that_was_superseded_while_its_answer_was_lost_learns_it_before_it_tells_anything() -> None:
    server = FencedMemory()
    first = SharedEngine(server, server.claim("one").epoch)
    server.faults.extend(["late"])
    server.cut = lambda: opened(server, "two") and None  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        first.write(unit(a="1"))
    assert server.arrive() == [False]
    assert server.kept.get("index", b"a") is None


def test_a_store_that_is_superseded_while_it_recovers_stays_stopped() -> None:
    server = FencedMemory()
    first = opened(server, "one")
    server.faults.extend([None, "lost", "lost", "lost"])
    with pytest.raises(StorageFailed):
        first.write([prepare("t")], NOW)
    opened(server, "two")
    assert first.recover() is None
    assert "another owner" in (first.failure() or "")


def test_the_id_is_the_stores_own_for_its_whole_life() -> None:
    server = FencedMemory()
    assert opened(server).id == opened(server).id != opened(FencedMemory()).id


# --- looks -----------------------------------------------------------------------------------------------------------


def test_scans_come_in_pages_that_grow() -> None:
    server = FencedMemory()
    engine = SharedEngine(server, server.claim("one").epoch)
    changes = Changes()
    changes.keys["log"] = {number.to_bytes(4, "big"): str(number).encode() for number in range(10_000)}
    engine.write(changes)
    everything = list(server.kept.scan("log", b"", b"\xff"))
    assert next(engine.scan("log", b"", b"\xff")) == everything[0]
    assert server.pages == [64]
    assert list(engine.scan("log", b"", b"\xff")) == everything
    assert server.pages[1:] == [64, 256, 1024, 4096, 4096, 464]
    assert list(engine.scan_back("log", b"", b"\xff")) == everything[::-1]
    assert list(engine.scan("log", everything[7][0], everything[7][0])) == []


def test_pages_of_large_values_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_engine, "FIRST_BYTES", 400)
    monkeypatch.setattr(shared_engine, "MOST_BYTES", 1_000)
    server = FencedMemory()
    engine = SharedEngine(server, server.claim("one").epoch)
    changes = Changes()
    changes.keys["log"] = {bytes([number]): bytes([number]) * 400 for number in range(20)}
    engine.write(changes)
    everything = list(server.kept.scan("log", b"", b"\xff"))
    assert list(engine.scan("log", b"", b"\xff")) == everything
    assert list(engine.scan_back("log", b"", b"\xff")) == everything[::-1]
    assert server.pages[:4] == [1, 3, 3, 3]


def test_a_server_that_was_dropped_is_told_of() -> None:
    server = FencedMemory()
    engine = SharedEngine(server, server.claim("one").epoch)
    server.state = None
    with pytest.raises(EngineFailed, match="not there any more"):
        engine.write(unit(a="1"))
