"""Manifests: what an archive consists of.

A file counts only if a manifest names it, so whatever a killed run leaves behind is invisible. The manifests of a topic
are numbered, never changed, and made exclusively: of two runs that planned after the same manifest, one publishes the
next one, and the other is refused. That is the only lock there is, and nobody has to break it after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tallystick.core.errors import ArchiveUnwritable, DamagedArchive
from tallystick.durable import make_directory, sync_directory

FORMAT = 1


class ArchivedFile(Struct, frozen=True):
    """One Parquet file: the offsets [start, end) of a queue, all stored on one day."""

    path: str  # below the archive's data directory
    day: str
    queue: int
    start: int
    end: int
    bytes: int
    first_ms: int  # the earliest and the latest time of storing
    last_ms: int
    checksum: str = ""  # of the content, not of the file: see jobs/archive/verification.py

    @property
    def rows(self) -> int:
        return self.end - self.start


class Gap(Struct, frozen=True):
    """Offsets [start, end) that the broker had dropped before they could be archived."""

    queue: int
    start: int
    end: int


class Manifest(Struct, frozen=True, kw_only=True):
    number: int
    topic: str
    store: str  # the broker's store and the topic's time of creation: offsets mean something only within one topic
    created_at: int
    run: str
    written_at: int
    complete_to: int | None = None  # every message stored before this time is archived (or in a gap)
    files: list[ArchivedFile] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    format: int = FORMAT

    @property
    def name(self) -> str:
        return manifest_name(self.number)


_decode = msgspec.json.Decoder(Manifest).decode


def manifest_name(number: int) -> str:
    return f"{number:012d}.json"


def decode_manifest(content: bytes, path: str) -> Manifest:
    try:
        manifest = _decode(content)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DamagedArchive(f"{path} is no manifest of an archive: {error}") from error
    if manifest.format > FORMAT:
        raise DamagedArchive(f"{path} has format {manifest.format}; this version reads formats up to {FORMAT}")
    return manifest


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Tell what went wrong in our words, whether here or in a task."""
    try:
        yield
    except OSError as error:
        raise ArchiveUnwritable(
            f"cannot write to the archive at {path}: {error.strerror or error}. It needs room, the right to write and "
            "a file system with hard links; nothing was trimmed for what could not be written"
        ) from error


def publish(directory: Path, manifest: Manifest) -> bool:
    """Make a manifest count, durable and whole. False if its number is taken: then nothing has changed."""
    with writing_to(directory):
        return _published(directory, manifest)


def _published(directory: Path, manifest: Manifest) -> bool:
    make_directory(directory)
    draft = directory / f".{manifest.number}-{manifest.run}.draft"
    with draft.open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link, because it fails if the name is taken; a rename would replace the other run's manifest.
        os.link(draft, directory / manifest.name)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    sync_directory(directory)
    return True
