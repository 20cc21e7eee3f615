"""The RocksDB engine: one process, one directory, everything acknowledged on disk."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tallystick.core.errors import DataDirectoryError
from tallystick.extras import need
from tallystick.store.directory import DataDirectory
from tallystick.store.kv.engine import AREAS, Area, Changes, EngineFailed, Found, Wanted
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreSettings
from tallystick.store.segments import Place, Segments

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
_LOST = (errno.ENOENT, errno.EIO)  # the file is gone, or the disk cannot read it
_HELD = "held"  # which bodies a segment holds: <segment> <key of the body>


class RocksEngine:
    """Of a body the tree knows only where it lies; see segments.py."""

    remote = False

    def __init__(self, path: Path) -> None:
        self._cache = Cache(64 * MIB)
        options = self._options()
        families: dict[str, Options] = {area: self._options(area) for area in (*AREAS, _HELD)}
        try:
            self._db = Rdict(str(path), options, column_families=families)
        except Exception as error:
            raise _cannot_open(error) from error
        self._areas: dict[str, Rdict] = {area: self._db.get_column_family(area) for area in families}
        self._handles = {area: self._db.get_column_family_handle(area) for area in families}
        try:
            self._segments = Segments(path.parent / "bodies", self._last_held())
        except Exception as error:
            self._close_tree()
            raise _cannot_open(error) from error
        self._closing = threading.Event()
        self._trimmed = threading.Event()
        self._reclaiming = threading.Thread(target=self._reclaim, name="reclaim", daemon=True)
        self._reclaiming.start()

    def _options(self, area: str | None = None) -> Options:
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
        return None if value is None else self._seen(area, key, value)

    def _seen(self, area: Area, key: bytes, value: bytes) -> bytes | None:
        """A value of the tree as others see it."""
        if area != "body":
            return value
        try:
            return self._segments.read(Place.unpacked(value))
        except OSError as error:
            if error.errno not in _LOST:
                raise
            # Removed while we looked; or it should be there, and is as good as cut off.
            return None if self._areas["body"].get(key) is None else b""

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
            yield self._seen(area, key, iterator.value()) if here == key else None

    def look_up(self, wanted: Wanted) -> Found:
        return {area: {key: self.get(area, key) for key in asked} for area, asked in wanted.items()}

    def scan(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        iterator = self._areas[area].iter(bounds)
        iterator.seek(start)
        while iterator.valid():
            key = iterator.key()
            if (value := self._seen(area, key, iterator.value())) is not None:
                yield key, value
            iterator.next()
        iterator.status()

    def scan_back(self, area: Area, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # No lower bound for the iterator: rocksdict 0.3.29 takes it for the upper one.
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(end)
        iterator = self._areas[area].iter(bounds)
        iterator.seek_to_last()
        while iterator.valid() and (key := iterator.key()) >= start:
            if (value := self._seen(area, key, iterator.value())) is not None:
                yield key, value
            iterator.prev()
        iterator.status()

    def write(self, changes: Changes) -> None:
        places = self._append(changes)
        batch = self._encode(changes, places)
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
        self._segments.settled()
        if changes.ranges or None in changes.keys["body"].values():
            self._trimmed.set()

    def _append(self, changes: Changes) -> dict[bytes, Place]:
        """The bodies, durable before anything refers to them."""
        bodies = {key: value for key, value in changes.keys["body"].items() if value is not None}
        if not bodies:
            return {}
        try:
            return dict(zip(bodies, self._segments.append(list(bodies.values())), strict=True))
        except OSError as error:
            full = error.errno == errno.ENOSPC
            advice = "" if full else ", restart the broker"
            raise EngineFailed(f"the store could not write{advice}: {error}", may_pass=full) from error

    def _encode(self, changes: Changes, places: dict[bytes, Place]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        for key, place in places.items():
            batch.put(place.held(key), b"", self._handles[_HELD])
        for area, start, end in changes.ranges:
            batch.delete_range(start, end, self._handles[area])
        for area, changed in changes.keys.items():
            handle = self._handles[area]
            for key, value in changed.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, places[key].packed() if area == "body" else value, handle)
        return batch

    # --- giving the disk back what was trimmed -------------------------------------------------------------------

    def _reclaim(self) -> None:
        """Now and then, and beside everything else."""
        self._remove_dead_segments()  # what a crash has left behind
        while not self._closing.wait(RECLAIM_SECONDS):
            self._trimmed.wait()
            self._trimmed.clear()
            if not self._closing.is_set():
                self._give_back()

    def _give_back(self) -> None:
        self._areas["log"].compact_range(None, None)  # only keys are compacted, so it takes a moment
        self._remove_dead_segments()

    def _remove_dead_segments(self) -> None:
        try:
            in_use = self._segments.in_use
            if in_use is not None and not self._alive(in_use):
                self._segments.seal()  # it would otherwise stay until it is full
            for number in self._segments.sealed():
                if self._closing.is_set():
                    return
                if not self._alive(number):
                    # What is written here must be durable first: nobody looks for this segment again.
                    self._db.flush_wal(True)
                    self._segments.remove(number)
        except Exception:
            log.exception("removing what was trimmed has failed; it is tried again later")

    def _alive(self, number: int) -> bool:
        """Whether a body in this segment is still known to the tree; what is not, is no longer held."""
        dead = WriteBatch(raw_mode=True)
        try:
            for key in self._keys_held(number):
                stored = self._areas["body"].get(key)
                if stored is not None and Place.unpacked(stored).segment == number:
                    return True
                dead.delete(Place.holding(number, key), self._handles[_HELD])
            return False
        finally:
            self._db.write(dead)

    def _keys_held(self, number: int) -> Iterator[bytes]:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(Place.holding(number + 1))
        iterator = self._areas[_HELD].iter(bounds)
        first = Place.holding(number)
        iterator.seek(first)
        while iterator.valid():
            yield iterator.key()[len(first) :]
            iterator.next()
        iterator.status()

    def _last_held(self) -> int:
        """The last segment that the tree knows of, whether its file is still there or not."""
        iterator = self._areas[_HELD].iter(ReadOptions())
        iterator.seek_to_last()
        return Place.holder(iterator.key()) if iterator.valid() else 0

    def close(self) -> None:
        """May be called again: a store whose engine could not be opened anew closes the last one once more."""
        self._closing.set()
        self._trimmed.set()
        self._reclaiming.join()
        self._segments.close()
        self._close_tree()

    def _close_tree(self) -> None:
        self._areas.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            # It is closed all the same. What it could not write is in its log, or was never acknowledged.
            log.warning("the store did not close cleanly: %s", error)


def _cannot_open(error: Exception) -> EngineFailed:
    return EngineFailed(f"the store cannot be opened: {error}", may_pass=_disk_full(error))


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
