"""The data directory: one owner, one format, one name for life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.errors import DataDirectoryError
from tallystick.store.directory import FORMAT, DataDirectory
from tallystick.store.rocksdb import open_rocksdb


def test_a_new_directory_gets_a_name_that_it_keeps(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "down"
    first = DataDirectory(place)
    first.close()
    second = DataDirectory(place)
    second.close()
    assert first.store_id == second.store_id
    known = json.loads((place / "format.json").read_text())
    assert (known["format"], known["store"]) == (FORMAT, first.store_id)
    other = DataDirectory(tmp_path / "other")
    other.close()
    assert other.store_id != first.store_id


def test_every_new_entry_is_made_durable_in_the_directory_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    really = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        really(handle)

    monkeypatch.setattr(os, "fsync", noting)
    DataDirectory(tmp_path / "deep" / "down").close()
    down = tmp_path / "deep" / "down"
    # The file before its name, and the name before the directory counts as made.
    assert synced == [str(one) for one in (tmp_path, tmp_path / "deep", down / "format.json.new", down)]


def test_the_second_owner_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryError, match=f"in use by another broker .process {os.getpid()}.") as refused:
        DataDirectory(tmp_path)
    assert refused.value.field == "data_dir"
    first.close()
    DataDirectory(tmp_path).close()


def test_the_end_of_the_owner_frees_it_however_it_ends(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tallystick.store.directory import DataDirectory;"
        "held = DataDirectory(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(DataDirectoryError, match=str(owner.pid)):
            DataDirectory(tmp_path)
        owner.kill()
    DataDirectory(tmp_path).close()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ('{"format": "x", "store": "y"}', "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 0, "store": "y"}', "has format 0"),
        ('{"format": 3, "store": "y"}', "has format 3"),
    ],
)
def test_a_format_that_cannot_be_read_is_told_and_left_as_it_is(tmp_path: Path, text: str, complaint: str) -> None:
    marker = tmp_path / "format.json"
    marker.write_text(text)
    for _ in range(2):  # the lock is not left behind by the refusal
        with pytest.raises(DataDirectoryError, match=complaint):
            DataDirectory(tmp_path)
    assert marker.read_text() == text


def test_data_without_a_format_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    with pytest.raises(DataDirectoryError, match=r"no format\.json"):
        DataDirectory(tmp_path)
    assert not (tmp_path / "format.json").exists()


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirectoryError, match=str(place)) as refused:
            DataDirectory(place)
        assert refused.value.field == "data_dir"


def test_a_store_that_cannot_be_opened_gives_its_directory_back(tmp_path: Path) -> None:
    open_rocksdb(tmp_path).close()
    (tmp_path / "db" / "CURRENT").write_text("nonsense")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="cannot be opened"):
            open_rocksdb(tmp_path)
    assert json.loads((tmp_path / "format.json").read_text())["format"] == FORMAT
