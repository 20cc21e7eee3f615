"""Each shared server under the engine: the same sorted map as in memory, one round trip a unit, owned by one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from test_store_engines import Unit, changes_of, seen, units

import shared_stores
from shared_stores import SHARED, SHARED_FULL, new_number, opener, url_at
from tallystick.core.errors import ConfigError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Ack, Commit, Nack, OpResult, Prepare, Rollback, Send
from tallystick.store.kv.engine import AREAS, Changes, Superseded
from tallystick.store.memory import MemoryEngine
from tallystick.store.protocol import Receive, Received, StoreSettings
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import SharedStore, open_shared, server_at
from tallystick.store.shared.server import SharedServer

NOW = 1_700_000_000_000
MIB = 1024 * 1024


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest) -> str:
    shared_stores.start(request.param, request)
    return url_at(request.param)


@pytest.fixture
def server(url: str) -> Iterator[SharedServer]:
    made = server_at(url, new_number())
    made.create()
    yield made
    made.close()


@pytest.fixture
def store(url: str) -> Iterator[SharedStore]:
    made = opener(url)(StoreSettings())
    yield made
    made.close()


def claimed(server: SharedServer) -> SharedEngine:
    return SharedEngine(server, server.claim("test").epoch)


def test_a_group_commit_costs_three_round_trips_at_most_whatever_is_in_it(store: SharedStore) -> None:
    def body(gid: str) -> list[OutgoingMessage]:
        return [OutgoingMessage("orders", gid.encode() * 50, key=gid)]

    store.write([Prepare(f"old-{number}", "shop", body(f"old-{number}")) for number in range(400)], NOW)
    store.write([Send(body(f"first-{number}")) for number in range(400)], NOW)
    (received,) = store.write([Receive("g", "orders", 400, 30_000)], NOW).results
    assert isinstance(received, Received)
    receipts = [one.receipt for one in received.deliveries]
    store._catalog.recent._records.clear()  # as after a takeover: commits have to be looked up
    store._catalog.marks[1].claimed = NOW + 10**9  # and may have been checked
    mixed = [
        *(Prepare(f"new-{number}", "shop", body(f"new-{number}")) for number in range(250)),
        *(Prepare(f"else-{number}", "shop", [OutgoingMessage(f"topic-{number}", b"x")]) for number in range(50)),
        *(Commit(f"old-{number}") for number in range(200)),
        *(Rollback(f"old-{number}") for number in range(200, 300)),
        *(Commit(f"new-{number}") for number in range(100)),
        *(Send(body(f"sent-{number}"), f"sent-{number}") for number in range(100)),
        *(Ack("g", [receipt]) for receipt in receipts[:150]),
        *(Nack("g", [receipt]) for receipt in receipts[150:200]),
    ]
    assert len(mixed) == 1_000
    before = store.server.trips
    results = store.write(mixed, NOW + 1).results
    assert store.server.trips - before <= 3
    assert not [one for one in results if isinstance(one, OpResult) and one.error]


def test_ranges_go_before_keys_and_a_unit_is_one_round_trip_with_them_too(server: SharedServer) -> None:
    engine = claimed(server)
    first, second = Changes(), Changes()
    first.keys["log"] = {bytes([number]): b"old" for number in range(10)}
    second.ranges = [("log", b"\2", b"\6"), ("log", b"\4", b"\7"), ("index", b"", b"\xff")]
    second.keys["log"] = {b"\3": b"new", b"\5": None, b"\x20": b"new"}
    engine.write(first)
    before = server.trips
    engine.write(second)
    assert server.trips - before <= 4
    wanted = {b"\0": b"old", b"\1": b"old", b"\3": b"new", **{bytes([n]): b"old" for n in (7, 8, 9)}, b"\x20": b"new"}
    assert dict(engine.scan("log", b"", b"\xff")) == wanted


def test_an_older_epoch_writes_nothing(server: SharedServer) -> None:
    first, second = claimed(server), claimed(server)
    changes = Changes()
    changes.keys["index"] = {b"a": b"1"}
    changes.ranges = [("log", b"", b"\xff")]
    kept = Changes()
    kept.keys["log"] = {b"b": b"2"}
    second.write(kept)
    with pytest.raises(Superseded):
        first.write(changes)
    assert second.get("index", b"a") is None
    assert second.get("log", b"b") == b"2"
    second.write(changes)
    assert (second.get("index", b"a"), second.get("log", b"b")) == (b"1", None)


def test_stores_of_one_server_know_nothing_of_each_other(url: str) -> None:
    one, other = (opener(url)(StoreSettings()) for _ in range(2))
    try:
        one.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
        assert one.id != other.id
        assert other.transaction("g") is None
        assert other.topics() == []
    finally:
        one.close()
        other.close()


def test_a_server_that_may_lose_what_it_acknowledged_is_refused(url: str) -> None:
    """The servers of tests do not wait for their disk."""
    with pytest.raises(ConfigError, match="may lose what it has acknowledged"):
        open_shared(url, new_number())


def test_a_unit_of_sixteen_megabytes_and_eight_thousand_operations(server: SharedServer) -> None:
    engine = claimed(server)
    large = [os.urandom(MIB) for _ in range(4)]
    changes = Changes()
    changes.keys["index"] = {number.to_bytes(4, "big"): b"small" * 10 for number in range(8_192)}
    changes.keys["body"] = {b"a" + bytes([number]): large[number % 4] * 3 for number in range(4)}
    changes.keys["log"] = {b"c" + bytes([number]): one for number, one in enumerate(large)}
    engine.write(changes)
    assert engine.get("body", b"a\3") == large[3] * 3
    assert [key for key, _ in engine.scan("log", b"", b"\xff")] == [b"c" + bytes([number]) for number in range(4)]
    assert [len(value) for _, value in engine.scan_back("body", b"", b"\xff")] == [3 * MIB] * 4
    assert len(list(engine.scan("index", b"", b"\xff"))) == 8_192
    assert len(server.page("body", b"", b"\xff", 64, 4 * MIB, False)) == 2, (
        "the second passes the size, and is the last"
    )
    assert len(server.page("body", b"", b"\xff", 64, MIB, True)) == 1


@pytest.mark.parametrize("engine", SHARED_FULL)
def test_it_holds_the_same_as_memory(engine: str, request: pytest.FixtureRequest) -> None:
    shared_stores.start(engine, request)

    @settings(max_examples=60, derandomize=True, deadline=None)
    @given(units)
    def compare(history: list[Unit]) -> None:
        memory, server = MemoryEngine(), server_at(url_at(engine), new_number())
        shared = claimed(server)
        try:
            for unit in history:
                memory.write(changes_of(unit))
                shared.write(changes_of(unit))
            for area in AREAS:
                assert seen(memory, area, b"\0", b"\xff" * 4) == seen(shared, area, b"\0", b"\xff" * 4)
                assert seen(memory, area, b"\1", b"\x80") == seen(shared, area, b"\1", b"\x80")
        finally:
            server.close()

    opener(url_at(engine))(StoreSettings()).close()  # makes the tables
    compare()
