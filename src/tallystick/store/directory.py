"""The data directory: one owner at a time, one format, one store id for its whole life."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from tallystick.core.errors import DataDirectoryError, DirectoryInUse
from tallystick.core.ids import new_store_id
from tallystick.durable import make_directory, sync_directory

# Format 2 keeps large bodies in `bodies/`. All that lies in a directory of format 1 is read as it is; it is marked as
# one of format 2 before anything is added to it, so that a version that knows only format 1 leaves it alone.
FORMAT = 2
_READ = (1, FORMAT)


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_directory(path)
            self._lock = self._take_lock(path / "lock")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self.store_id = self._read_or_make()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def _unusable(self, error: OSError) -> DataDirectoryError:
        return DataDirectoryError(f"data directory {self.path}: {error.strerror}", field="data_dir")

    def _take_lock(self, path: Path) -> int:
        # The kernel drops the lock when the process ends, however it ends: a kill -9 leaves nothing to clean up.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise DirectoryInUse(
                f"data directory {self.path} is in use by another broker (process {owner}); "
                "stop that one or choose another directory",
                field="data_dir",
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        return handle

    def _read_or_make(self) -> str:
        marker = self.path / "format.json"
        if marker.exists():
            return self._read(marker)
        if (self.path / "db").exists():
            raise DataDirectoryError(f"data directory {self.path} has data but no format.json", field="data_dir")
        store_id = new_store_id()
        self._write(marker, {"format": FORMAT, "store": store_id, "created_at": int(time.time())})
        (self.path / "db").mkdir()  # here, because its entry in this directory must be durable as well
        sync_directory(self.path)
        return store_id

    def _write(self, marker: Path, known: dict[str, Any]) -> None:
        """All of it or nothing; durable once the directory is synced."""
        temporary = self.path / "format.json.new"
        with temporary.open("w") as file:
            file.write(json.dumps(known) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(marker)

    def _read(self, marker: Path) -> str:
        try:
            known = json.loads(marker.read_text())
            found, store_id = int(known["format"]), str(known["store"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataDirectoryError(f"{marker} is damaged: {error}", field="data_dir") from error
        if found not in _READ:
            raise DataDirectoryError(
                f"data directory {self.path} has format {found}; this version of Tallystick reads format {FORMAT}",
                field="data_dir",
            )
        if source := known.get("copy_of"):
            raise DataDirectoryError(
                f"data directory {self.path} holds half a copy of {source}, which was interrupted; copy it again with "
                "`tallystick store copy ... --force`",
                field="data_dir",
            )
        if found != FORMAT:
            self._write(marker, {**known, "format": FORMAT})
            sync_directory(self.path)
        return store_id

    def close(self) -> None:
        os.close(self._lock)
