"""The write-ahead log cut off or damaged: what was acknowledged before the damage is there, or the store says no."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broker_tracer import newest_log

from brokers import running_broker
from raw_client import RawClient
from tallystick.core.errors import DataDirectoryError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Send
from tallystick.store.rocksdb import open_rocksdb

pytestmark = pytest.mark.fault

OPS = 8


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[int]]:
    """A data directory as kill -9 leaves it, its log, and how long the log was after each acknowledged operation."""
    directory = tmp_path_factory.mktemp("torn")
    with running_broker(directory) as broker, RawClient(broker.url) as client:
        sizes = []
        for number in range(OPS):
            gid = f"t{number}"
            message = OutgoingMessage("orders", gid.encode() * 50)
            if number % 2:
                client.do(Send([message], gid))
            else:
                client.batch(Prepare(gid, "shop", [message]), Commit(gid))
            sizes.append(newest_log(broker).stat().st_size)
        log = newest_log(broker).name
        broker.kill()
        return broker.data_dir, log, sizes


def copy_of(written: tuple[Path, str, list[int]], place: Path) -> Path:
    shutil.copytree(written[0], place)
    return place / "db" / written[1]


def states(directory: Path) -> list[str]:
    """What the store shows of each operation, after it was opened and once more after it was reopened."""
    shown: list[list[str]] = []
    for _ in range(2):
        store = open_rocksdb(directory)
        try:
            views = [store.transaction(f"t{number}") for number in range(OPS)]
            visible = sum(sum(view.ends) for view in store.topics())
            assert visible == sum(view is not None and view.state == "committed" for view in views)
            shown.append([view.state if view else "nothing" for view in views])
        finally:
            store.close()
    assert shown[0] == shown[1]
    return shown[0]


def cuts(sizes: list[int]) -> list[int]:
    """Around the end of each of the last records, and inside of them."""
    ends = sizes[-3:]
    near = [end + step for end in ends for step in (-1, 0, -7, -20)]
    inside = [(left + right) // 2 for left, right in zip(sizes[-4:], sizes[-3:], strict=False)]
    return sorted({cut for cut in near + inside + [sizes[-4] + 1] if cut <= sizes[-1]})


def test_a_log_cut_off_anywhere_keeps_every_record_before_the_cut(
    written: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    sizes = written[2]
    assert sizes == sorted(set(sizes))
    for cut in cuts(sizes):
        place = tmp_path / str(cut)
        log = copy_of(written, place)
        with log.open("r+b") as file:
            file.truncate(cut)
        whole = sum(size <= cut for size in sizes)
        assert states(place) == ["committed"] * whole + ["nothing"] * (OPS - whole), cut


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff" * 100, b"\x01\x02\x03"], ids=["zeros", "ones", "a few bytes"])
def test_a_tail_of_rubbish_takes_nothing_away(
    written: tuple[Path, str, list[int]], tmp_path: Path, tail: bytes
) -> None:
    log = copy_of(written, tmp_path / "data")
    with log.open("ab") as file:
        file.write(tail)
    assert states(tmp_path / "data") == ["committed"] * OPS


def test_damage_in_the_middle_of_the_log_is_told_and_not_skipped(
    written: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    log = copy_of(written, tmp_path / "data")
    middle = (written[2][1] + written[2][2]) // 2
    with log.open("r+b") as file:
        file.seek(middle)
        byte = file.read(1)
        file.seek(middle)
        file.write(bytes([byte[0] ^ 0xFF]))
    with pytest.raises(DataDirectoryError, match=r"(?i)corruption"):
        open_rocksdb(tmp_path / "data")
