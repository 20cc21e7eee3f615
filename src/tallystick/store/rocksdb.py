"""The RocksDB engine: one process, one directory, everything acknowledged on disk."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tallystick.core.errors import DataDirectoryError
from tallystick.extras import need
from tallystick.store.directory import DataDirectory
from tallystick.store.kv.engine import AREAS, Area, Changes, EngineFailed
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreSettings

need("server")

from rocksdict import (  # noqa: E402 - where it is missing, the line above has said what to install
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

log = logging.getLogger("tallystick.store")

MIB = 1024 * 1024
RECLAIM_SECONDS = 30.0


class RocksEngine:
    def __init__(self, path: Path) -> None:
        self._cache = Cache(64 * MIB)
        options = self._options()
        families: dict[str, Options] = {area: self._options(area) for area in AREAS}
        try:
            self._db = Rdict(str(path), options, column_families=families)
        except Exception as error:
            raise EngineFailed(f"the store cannot be opened: {error}", may_pass=_disk_full(error)) from error
        self._reclaiming = threading.Thread()
        self._reclaimed_at = -RECLAIM_SECONDS
        self._areas = {area: self._db.get_column_family(area) for area in AREAS}
        self._handles = {area: self._db.get_column_family_handle(area) for area in AREAS}

    def _options(self, area: Area | None = None) -> Options:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        # After a crash the log may end in a torn record: everything before it is kept, nothing after it was
        # acknowledged. Damage in the middle of the log is an error, not something to skip.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_max_background_jobs(2)
        options.set_max_total_wal_size(512 * MIB)
        options.set_keep_log_file_num(4)
        options.set_max_open_files(512)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_size(64 * MIB if area in ("tx", "log") else 32 * MIB)
        options.set_max_write_buffer_number(3)
        if area == "log":
            # Chunks are large and written once: kept in files beside the tree, compaction moves only their keys.
            # RocksDB's own collection would copy the oldest live ones again and again; files that hold nothing
            # live any more go without it, see `_reclaim`.
            options.set_enable_blob_files(True)
            options.set_min_blob_size(4096)
            options.set_blob_file_size(64 * MIB)
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        # Filters and indexes are counted in the cache, so that memory is bounded, and are cut into small pieces: a
        # whole one is a megabyte, and with a million pending transactions every look-up had to load it again.
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_metadata_block_size(4096)
        table.set_pin_top_level_index_and_filter(True)
        options.set_block_based_table_factory(table)
        return options

    def get(self, area: Area, key: bytes) -> bytes | None:
        value: bytes | None = self._areas[area].get(key)
        return value

    def get_many(self, area: Area, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        # From one to the next where they are neighbours; a get for each would look into every file again.
        iterator = self._areas[area].iter()
        here = None
        for key in keys:
            if here is not None and here < key:
                iterator.next()
                here = iterator.key() if iterator.valid() else None
            if here is None or here < key:
                iterator.seek(key)
                here = iterator.key() if iterator.valid() else None
            if here is None:
                iterator.status()
            yield iterator.value() if here == key else None

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        iterator = self._areas[area].iter(bounds)
        iterator.seek(start)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        iterator.status()

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # No lower bound for the iterator: rocksdict 0.3.29 takes it for the upper one.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        iterator = self._areas[area].iter(bounds)
        iterator.seek_to_last()
        while iterator.valid() and iterator.key() >= start:
            yield iterator.key(), iterator.value()
            iterator.prev()
        iterator.status()

    def write(self, changes: Changes) -> None:
        batch = self._encode(changes)
        try:
            self._db.write(batch)
        except Exception as error:
            raise EngineFailed(f"the store could not write: {error}", may_pass=_disk_full(error)) from error
        try:
            # On this thread, but with Python's lock released: the rest of the broker runs on during the fsync.
            self._db.flush_wal(True)
        except Exception as error:
            # What the disk holds now is unknown. Trying again would report success for data that may be lost.
            raise EngineFailed(f"fsync failed, restart the broker: {error}", may_pass=False) from error
        if changes.ranges:
            self._reclaim()

    def _reclaim(self) -> None:
        """Give the disk back what was trimmed. Only keys are compacted, so it takes a moment, now and then."""
        if time.monotonic() - self._reclaimed_at < RECLAIM_SECONDS or self._reclaiming.is_alive():
            return
        self._reclaimed_at = time.monotonic()
        self._reclaiming = threading.Thread(target=self._areas["log"].compact_range, args=(None, None), daemon=True)
        self._reclaiming.start()

    def _encode(self, changes: Changes) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        for area, start, end in changes.ranges:
            batch.delete_range(start, end, self._handles[area])
        for area, changed in changes.keys.items():
            handle = self._handles[area]
            for key, value in changed.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        return batch

    def close(self) -> None:
        if self._reclaiming.is_alive():
            self._reclaiming.join()
        self._areas.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            # It is closed all the same. What it could not write is in its log, or was never acknowledged.
            log.warning("the store did not close cleanly: %s", error)


def _disk_full(error: Exception) -> bool:
    return os.strerror(errno.ENOSPC) in str(error)


class RocksStore(KvStore):
    """A store in a directory, which it locks for as long as it is open."""

    def __init__(self, directory: DataDirectory, settings: StoreSettings) -> None:
        self.directory = directory
        super().__init__(directory.store_id, lambda: RocksEngine(directory.path / "db"), settings)

    def close(self) -> None:
        super().close()
        self.directory.close()


def open_rocksdb(path: Path, settings: StoreSettings | None = None) -> RocksStore:
    directory = DataDirectory(path)
    try:
        return RocksStore(directory, settings or StoreSettings())
    except BaseException as error:
        directory.close()
        if isinstance(error, EngineFailed):
            raise DataDirectoryError(f"data directory {path}: {error.reason}", field="data_dir") from error
        raise
