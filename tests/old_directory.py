"""A data directory as versions with format 1 have left it: without bodies in columns, and without a place for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rocksdict import Options, Rdict

from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import CommitBatch, PartRef, PreparePart, Send
from tallystick.store.protocol import PutTopic
from tallystick.store.rocksdb import open_rocksdb

LARGE = 300  # messages of a part that is laid down as a body


def make_old(directory: Path, topic: str, now: int) -> list[bytes]:
    """A topic of one queue with messages in chunks and in a body; their values."""
    large = [OutgoingMessage(topic, f"large-{number}-".encode() * 40) for number in range(LARGE)]
    small = [OutgoingMessage(topic, f"small-{number}".encode(), f"k{number}") for number in range(20)]
    store = open_rocksdb(directory)
    ops = [
        PutTopic(topic, 1),
        Send(small[:10], "s1"),
        PreparePart("large", large),
        CommitBatch("old", 1, "g-old", [PartRef("large", LARGE)]),
        Send(small[10:], "s2"),
    ]
    store.write(ops, now)
    store.close()
    _forget_columns(directory)
    return [one.value for one in (*small[:10], *large, *small[10:])]


def _forget_columns(directory: Path) -> None:
    families = {name: Options(raw_mode=True) for name in ("tx", "log", "index", "body", "held")}
    tree = Rdict(str(directory / "db"), Options(raw_mode=True), column_families=families)
    for name in ("body", "held"):
        tree.drop_column_family(name)
    tree.close()
    shutil.rmtree(directory / "bodies")
    marker = directory / "format.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "format": 1}) + "\n")
