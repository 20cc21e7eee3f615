"""Data directories as places that a store is copied from and to."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tallystick.core.errors import DataDirectoryError, NotFound
from tallystick.durable import sync_directory
from tallystick.store.directory import FORMAT, DataDirectory
from tallystick.store.kv.engine import Engine
from tallystick.store.rocksdb import RocksEngine

_OURS = {"lock", "format.json", "format.json.new", "db", "bodies"}


class DirectorySource:
    """Locked for as long as it is open, so nobody else can change it."""

    def __init__(self, path: Path) -> None:
        if not (path / "format.json").exists():
            raise NotFound(f"{path} is no data directory of a broker: there is no format.json in it")
        self.name = str(path)
        self._directory = DataDirectory(path)
        self.store_id = self._directory.store_id
        try:
            self.engine: Engine = RocksEngine(path / "db")
        except BaseException:
            self._directory.close()
            raise

    def check(self) -> None:
        """The lock is ours."""

    def close(self) -> None:
        self.engine.close()
        self._directory.close()


class DirectoryTarget:
    def __init__(self, path: Path, overwrite: bool) -> None:
        self.name = str(path)
        self._directory = _HalfCopied(path, overwrite)
        self._engine: Engine | None = None

    def begin(self, store_id: str, source: str) -> Engine:
        self._directory.begin(store_id, source)
        self._engine = RocksEngine(self._directory.path / "db")
        return self._engine

    def finish(self) -> None:
        self._directory.finish()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._directory.close()


class _HalfCopied(DataDirectory):
    """A directory that is made anew, and says from `begin` to `finish` that it is half a copy."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._overwrite = overwrite
        super().__init__(path)

    def _read_or_make(self) -> str:
        """Nothing is read and nothing made yet; what must not be overwritten is refused."""
        found = {path.name for path in self.path.iterdir()}
        if found - _OURS:
            raise DataDirectoryError(f"{self.path} holds other files; choose an empty directory", field="to")
        if found & {"format.json", "db"} and not self._overwrite:
            raise DataDirectoryError(
                f"data directory {self.path} is not empty; --force overwrites what is in it", field="to"
            )
        return ""

    def begin(self, store_id: str, source: str) -> None:
        self.store_id = store_id
        # First the mark: from here on nobody opens what is left of the old or has come of the new.
        self._mark(copy_of=source)
        for old in (self.path / "db", self.path / "bodies"):
            if old.exists():
                shutil.rmtree(old)
        (self.path / "db").mkdir()
        sync_directory(self.path)

    def finish(self) -> None:
        self._mark()

    def _mark(self, **more: str) -> None:
        known = {"format": FORMAT, "store": self.store_id, "created_at": int(time.time())}
        self._write(self.path / "format.json", known | more)
        sync_directory(self.path)
