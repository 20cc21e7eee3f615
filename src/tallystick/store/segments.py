"""Segments: files beside the tree that large values are appended to, once, and read from at a known place.

RocksDB would write them three times (its log, its memory, its files) and compute its checksum of each. Here a value is
written and synced before the tree is told where it lies, so whatever the tree knows of is there. What a crash leaves
behind that the tree was never told of goes with its segment: a segment is removed as soon as nothing in it is alive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from struct import Struct as Packer
from typing import NamedTuple

from tallystick.durable import make_directory, sync_directory

SEGMENT_BYTES = 64 * 1024 * 1024
_PLACE = Packer(">IQI")
_NUMBER = Packer(">I")
_SUFFIX = ".segment"


class Place(NamedTuple):
    """Where a value lies."""

    segment: int
    position: int
    length: int

    def packed(self) -> bytes:
        return _PLACE.pack(*self)

    @classmethod
    def unpacked(cls, stored: bytes) -> Place:
        return cls(*_PLACE.unpack(stored))

    def held(self, key: bytes) -> bytes:
        return self.holding(self.segment, key)

    @staticmethod
    def holding(segment: int, key: bytes = b"") -> bytes:
        """The key that says that a segment holds the value of another key."""
        return _NUMBER.pack(segment) + key

    @staticmethod
    def holder(key: bytes) -> int:
        """The segment that such a key names."""
        return int(_NUMBER.unpack_from(key)[0])


class Segments:
    """One writer, any number of readers. Each run begins a segment of its own: what the last one may have left at the
    end of its segment is never written behind. After an `OSError` nothing more is appended in this run.

    `last` is the last segment that is known to the tree. If somebody took its file away, its number is still not given
    again: what is looked for in the one must not be found in the other."""

    def __init__(self, directory: Path, last: int = 0) -> None:
        self._directory = directory
        make_directory(directory)
        self._numbers = sorted(int(path.stem) for path in directory.glob(f"*{_SUFFIX}"))
        self._number = max([last, *self._numbers])
        self._writing = threading.Lock()
        self._untold = False  # the tree does not know yet of what was appended last
        self._file = -1
        self._end = SEGMENT_BYTES  # the first value begins a segment
        self._sealed = self._number  # up to this one nothing is added, and what was added is known to the tree

    def append(self, values: Sequence[bytes]) -> list[Place]:
        """Where the values lie, once they are durable. An `OSError` leaves behind what nobody refers to."""
        places = []
        with self._writing:
            self._untold = True
            for value in values:
                if self._end >= SEGMENT_BYTES:
                    self._begin()
                places.append(Place(self._number, self._end, len(value)))
                _write(self._file, value)
                self._end += len(value)
            os.fdatasync(self._file)
        return places

    def settled(self) -> None:
        """The tree knows all that was appended: what came before the segment in use, if there is one, can be looked
        through."""
        with self._writing:
            self._untold = False
            self._sealed = self._number - (self._file >= 0)

    @property
    def in_use(self) -> int | None:
        return self._number if self._file >= 0 else None

    def seal(self) -> None:
        """Nothing more is appended to the segment in use, unless something is being appended now."""
        with self._writing:
            if not self._untold and self._file >= 0:
                self.close()
                self._end, self._sealed = SEGMENT_BYTES, self._number

    def _begin(self) -> None:
        if self._file >= 0:
            os.fdatasync(self._file)
            os.close(self._file)
            self._file = -1
        number = self._number + 1
        self._file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        sync_directory(self._directory)
        self._number, self._end = number, 0
        self._numbers.append(number)

    def read(self, place: Place) -> bytes:
        """The bytes at a place; fewer than its length where the file is cut off. `FileNotFoundError` if the segment
        was removed."""
        number, position, length = place
        # Opened for each read, and each is large: a handle that is kept might be closed under a reader.
        file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(file, length, position)
        finally:
            os.close(file)

    def sealed(self) -> list[int]:
        return [number for number in self._numbers if number <= self._sealed]

    def remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)
        self._numbers.remove(number)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08}{_SUFFIX}"


def _write(file: int, value: bytes) -> None:
    left = memoryview(value)
    while left:
        left = left[os.write(file, left) :]
