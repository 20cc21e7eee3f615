"""The bytes of every kind of key. A directory that was written by an earlier version must be read by this one."""

from __future__ import annotations

import pytest

from tallystick.core.calls import CallResult, OutgoingCall
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import (
    Check,
    Commit,
    CommitBatch,
    CommitOffsets,
    PartRef,
    Prepare,
    PreparePart,
    Send,
)
from tallystick.store.kv import parts
from tallystick.store.kv.engine import Area, Changes
from tallystick.store.kv.store import KvStore
from tallystick.store.memory import MemoryEngine
from tallystick.store.protocol import (
    ClaimCalls,
    ClaimChecks,
    DeleteTopic,
    ExpireTombstones,
    FailChecks,
    FinishCalls,
    PutTopic,
    Receive,
    StoreOp,
    StoreSettings,
    Subscribe,
    TrimTo,
)

NOW = 1_700_000_000_000
DAY = 24 * 3600 * 1000


class RecordingEngine(MemoryEngine):
    """Remembers every key that was ever put."""

    def __init__(self) -> None:
        super().__init__()
        self.put: set[tuple[Area, bytes]] = set()

    def write(self, changes: Changes) -> None:
        self.put |= {
            (area, key) for area, kept in changes.keys.items() for key, value in kept.items() if value is not None
        }
        super().write(changes)


def call(url: str = "http://svc.example/pay") -> OutgoingCall:
    return OutgoingCall(url, b"{}")


HISTORY: tuple[tuple[int, StoreOp], ...] = (
    (0, PutTopic("orders", 2)),
    (0, PutTopic("short", 1)),
    (0, Subscribe("paid", "http://svc.example/paid")),
    (1, Prepare("gid-1", "shop", [OutgoingMessage("orders", b"v", "d")], Check(after_ms=500))),
    (
        1,
        Prepare(
            "gid-2", "shop", [OutgoingMessage("orders", b"v", "d")], Check("url", "http://shop.example", after_ms=700)
        ),
    ),
    (1, Prepare("gid-5", "shop", [], Check(after_ms=500, max_checks=1))),
    (2, Commit("gid-1")),
    (3, Send([OutgoingMessage("orders", b"later", delay_ms=5_000)])),
    (4, Send([], "gid-3", [call(), call()])),
    (5, ClaimCalls([3], 1, 10**6, 60_000)),
    (6, FinishCalls([CallResult("gid-3", 0, "failure", "no")])),
    (7, PreparePart("part-1", [OutgoingMessage("orders", b"v", "d")], 7)),
    (7, PreparePart("part-2", [OutgoingMessage("orders", b"large", "d"), OutgoingMessage("orders", b"large", "a")])),
    (8, CommitBatch("app-1", 4, "gid-4", [PartRef("part-2", 2)])),
    (9, Receive("readers", "orders", 1, 30_000)),
    (10, CommitOffsets("followers", "orders", {0: 1})),
    (800, ClaimChecks([2], 10, 1_000)),
    (801, FailChecks({"gid-2": "nobody there"}, counted=False, retry_ms=2_000)),
    (801, FailChecks({"gid-5": "no answer"})),
    (802, TrimTo("orders", {0: 1}, 10)),
    (803, Send([OutgoingMessage("short", b"v")])),
    (804, DeleteTopic("short")),
    (8 * DAY, ExpireTombstones(100)),
)

SETTINGS = StoreSettings(max_call_attempts=1)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Area, bytes]]:
    engine = RecordingEngine()
    store = KvStore("store", lambda: engine, SETTINGS)
    for after, op in HISTORY:
        monkeypatch.setattr(parts, "SMALL_BYTES", 4 if isinstance(op, PreparePart) and op.part == "part-2" else 10**6)
        store.write([op], NOW + after)
    return engine.put


GOLDEN: dict[Area, set[bytes]] = {
    "tx": {
        b"cgid-3",
        b"ppart-1\x00\x00\x00\x00\x07",
        b"ppart-2\x00\x00\x00\x00\x00",
        b"tgid-1",
        b"tgid-2",
        b"tgid-3",
        b"tgid-4",
        b"tgid-5",
    },
    "log": {
        b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00\x00\x00\x00\x02",
        b"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    },
    "index": {
        b"Ccall:http://svc.example",
        b"Cgroup:shop",
        b"Curl:http://shop.example",
        b"D\x00\x00\x00\x03\x00\x00\x01\x8b\xcf\xe5h\x04gid-3\x00\x00\x00",
        b"Eshort",
        b"Gfollowers",
        b"Greaders",
        b"Lapp-1",
        b"Mcounters",
        b"N\x00\x00\x00\x01\x00\x00",
        b"N\x00\x00\x00\x01\x00\x01",
        b"N\x00\x00\x00\x02\x00\x00",
        b"O\x00\x00\x00\x01",
        b"Pgid-5",
        b"S\x00\x00\x00\x01\x00\x00",
        b"Torders",
        b"Tshort",
        b"Upaid",
        b"Xgid-3\x00\x00\x00",
        b"a\x00\x00\x01\x8b\xcf\xe5h\x01gid-2",
        b"a\x00\x00\x01\x8b\xcf\xe5h\x01gid-5",
        b"b\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
        b"b\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"d\x00\x00\x00\x01\x00\x00\x01\x8b\xcf\xe5i\xf5gid-1",
        b"d\x00\x00\x00\x01\x00\x00\x01\x8b\xcf\xe5i\xf5gid-5",
        b"d\x00\x00\x00\x02\x00\x00\x01\x8b\xcf\xe5j\xbdgid-2",
        b"d\x00\x00\x00\x02\x00\x00\x01\x8b\xcf\xe5o\x08gid-2",
        b"d\x00\x00\x00\x02\x00\x00\x01\x8b\xcf\xe5r\xf1gid-2",
        b"e\x00\x00\x01\x8b\xd5\x0b\xc4\x07ppart-1\x00\x00\x00\x00\x07",
        b"e\x00\x00\x01\x8b\xd5\x0b\xc4\x07ppart-2\x00\x00\x00\x00\x00",
        b"g\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01",
        b"i\x00\x00\x01\x8b\xcf\xe6Regid-3\x00\x00\x00",
        b"kgid-2",
        b"kgid-5",
        b"l\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"o\x00\x00\x00\x00\x00\x00\x00\x01",
        b"o\x00\x00\x00\x00\x00\x00\x00\x02",
        b"o\x00\x00\x00\x00\x00\x00\x00\x03",
        b"q\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00",
        b"v\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x01\x8b\xcf\xe5\xdd9\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"w\x00\x00\x00\x01",
        b"w\x00\x00\x00\x02",
        b"w\x00\x00\x00\x03",
        b"xgid-3",
        b"y\x00\x00\x01\x8b\xcf\xe5{\x8b\x00\x00\x00\x00\x00\x00\x00\x01",
        b"z\x00\x00\x01\x8c\x1d$\xcc\x00gid-3",
    },
}


@pytest.mark.parametrize("area", ["tx", "log", "index"])
def test_the_keys_that_a_history_leaves_are_those_of_the_format(put: set[tuple[Area, bytes]], area: Area) -> None:
    assert {key for where, key in put if where == area} == GOLDEN[area]


def test_every_kind_of_key_is_among_them() -> None:
    assert {key[:1].decode() for key in GOLDEN["tx"] | GOLDEN["index"]} == set("tpcTCdkPyGlqbxDXENSwaeogvMLUizO")
    assert {key[4:6] for key in GOLDEN["log"]} == {b"\0\0", b"\0\1", b"\xff\xff"}
