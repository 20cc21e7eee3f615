"""Where an archive keeps what, and reading it.

    <path>/manifests/<topic>/000000000001.json                        what counts, in the order of publication
    <path>/data/topic=<topic>/day=2026-11-15/<queue>-<offset>-<run>-<unique>.parquet

Reading needs neither Spark nor a broker, and works on every filesystem that pyarrow knows by its URI.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tallystick.core.errors import DamagedArchive, InvalidRequest, NotFound, OffsetOutOfRange
from tallystick.spark.archive.manifest import ArchivedFile, Manifest, decode_manifest

BATCH_ROWS = 8_192
Range = tuple[int, int]

# As the broker's Arrow endpoint gives it; Parquet does not keep which columns may be null in all their parts.
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queue", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("tag", pa.string()),
        pa.field("gid", pa.string()),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("born_at", pa.timestamp("ms", tz="UTC"), nullable=False),
    ]
)


class Archive:
    """The archive at a path or URI. A manifest never changes, so each is read once; new ones are seen at every call."""

    def __init__(self, path: str) -> None:
        self.path = path
        local = path if "://" in path else os.path.abspath(path)
        try:
            self._filesystem, root = fs.FileSystem.from_uri(local)
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"{path}: no path or URI of an archive: {error}", field="archive") from error
        self._root = root.rstrip("/")
        self._read: dict[tuple[str, str], Manifest] = {}

    @property
    def is_local(self) -> bool:
        return isinstance(self._filesystem, fs.LocalFileSystem)

    @property
    def data(self) -> str:
        return f"{self._root}/data"

    def manifest_directory(self, topic: str = "") -> str:
        return f"{self._root}/manifests/{topic}".rstrip("/")

    # --- what there is ---------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The topics of which anything is archived."""
        self._check_there()
        return [name for name in self._listed(self.manifest_directory()) if self.manifests(name)]

    def manifests(self, topic: str) -> list[Manifest]:
        """All manifests of a topic, oldest first."""
        directory = self.manifest_directory(topic)
        names = [name for name in self._listed(directory) if name.endswith(".json") and not name.startswith(".")]
        return [self._manifest(topic, directory, name) for name in names]

    def files(self, topic: str) -> list[ArchivedFile]:
        """The files that count, by queue and offset."""
        found = [file for manifest in self.manifests(topic) for file in manifest.files]
        return sorted(found, key=lambda file: (file.queue, file.start))

    def paths(self, topic: str) -> list[str]:
        """The same as paths, for whoever reads Parquet without us: files that no manifest names are not among them."""
        root = self.path.rstrip("/") if "://" in self.path else self._root
        return [f"{root}/data/{file.path}" for file in self.files(topic)]

    def gaps(self, topic: str) -> dict[int, list[Range]]:
        """By queue, the offsets that were lost to the archive."""
        found: dict[int, list[Range]] = {}
        for manifest in self.manifests(topic):
            for gap in manifest.gaps:
                found.setdefault(gap.queue, []).append((gap.start, gap.end))
        return found

    def ranges(self, topic: str) -> dict[int, list[Range]]:
        """By queue, the archived offsets [start, end): more than one range if there are gaps."""
        found: dict[int, list[Range]] = {}
        for file in self.files(topic):
            known = found.setdefault(file.queue, [])
            if known and known[-1][1] == file.start:
                known[-1] = (known[-1][0], file.end)
            else:
                known.append((file.start, file.end))
        return found

    def covers(self, topic: str) -> dict[int, Range]:
        """By queue, the latest continuous range of archived offsets: the one that the broker's log continues."""
        self._check_there()
        return {queue: ranges[-1] for queue, ranges in self.ranges(topic).items()}

    def offsets_at(self, topic: str, milliseconds: int) -> dict[int, int]:
        """By queue, the first archived offset stored at or after a time; the archive's end if there is none."""
        found = {queue: end for queue, (_, end) in self.covers(topic).items()}
        for file in reversed(self.files(topic)):
            if file.last_ms >= milliseconds:
                found[file.queue] = self._first_since(file, milliseconds)
        return found

    # --- reading ---------------------------------------------------------------------------------------------

    def read(
        self, topic: str, queue: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a queue with offsets in [start, end), in order, as the broker's Arrow endpoint gives them.

        Only the row groups that hold such offsets are read. All of the range must be archived.
        """
        at = start
        for file in self.files(topic):
            if file.queue != queue or file.end <= at or file.start >= end:
                continue
            if file.start > at:
                break
            yield from self.read_file(file, at, min(file.end, end), columns)
            at = min(file.end, end)
        if at < end:
            raise OffsetOutOfRange(
                f"offsets {at:,} to {end:,} of topic {topic!r}, queue {queue} are not all archived at {self.path}: "
                f"it has {_shown(self.ranges(topic).get(queue, []))}"
            )

    def read_file(
        self, file: ArchivedFile, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file with offsets in [start, end)."""
        wanted = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
        try:
            with self._filesystem.open_input_file(f"{self.data}/{file.path}") as source, _opened(source) as parquet:
                groups, at = _row_groups(parquet, file, start, end)
                for batch in parquet.iter_batches(BATCH_ROWS, groups, wanted.names, use_threads=False):
                    first, last = max(start - at, 0), min(end - at, batch.num_rows)
                    at += batch.num_rows
                    if first < last:
                        yield _typed(batch.slice(first, last - first), wanted)
        except (pa.ArrowException, OSError) as error:
            raise DamagedArchive(f"{self.data}/{file.path} cannot be read: {error}") from error
        if at < end:
            raise DamagedArchive(f"{self.data}/{file.path} ends at offset {at:,}; its manifest says {file.end:,}")

    def _first_since(self, file: ArchivedFile, milliseconds: int) -> int:
        if file.first_ms >= milliseconds:
            return file.start
        at = file.start
        for batch in self.read_file(file, file.start, file.end, ["timestamp"]):
            for stored in batch.column("timestamp").cast(pa.int64()).to_pylist():
                if stored >= milliseconds:
                    return at
                at += 1
        return at

    def _listed(self, directory: str) -> list[str]:
        """The names in a directory, in order; none if it is not there."""
        found = self._filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(one.base_name for one in found)

    def _check_there(self) -> None:
        """A wrong path is not an archive of nothing."""
        if self._filesystem.get_file_info(self.manifest_directory()).type == fs.FileType.NotFound:
            raise NotFound(f"there is no archive at {self.path}", field="archive")

    def _manifest(self, topic: str, directory: str, name: str) -> Manifest:
        known = self._read.get((topic, name))
        if known is None:
            with self._filesystem.open_input_stream(f"{directory}/{name}") as stream:
                known = decode_manifest(stream.read(), f"{directory}/{name}")
            self._read[(topic, name)] = known
        return known


def _opened(source: Any) -> Any:
    # Pages have checksums of their own: a byte that turned over on the disk is an error, not another message.
    return pq.ParquetFile(source, page_checksum_verification=True)


def _row_groups(parquet: Any, file: ArchivedFile, start: int, end: int) -> tuple[list[int], int]:
    """The row groups with offsets in [start, end), and the offset at which the first of them begins.

    Offsets are dense, so the numbers of rows say where each group begins; no statistics are needed.
    """
    wanted: list[int] = []
    at = first = file.start
    for number in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(number).num_rows
        if at < end and at + rows > start:
            first = first if wanted else at
            wanted.append(number)
        at += rows
    return wanted, first


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _shown(ranges: list[Range]) -> str:
    return ", ".join(f"[{start:,}, {end:,})" for start, end in ranges) or "nothing of it"
