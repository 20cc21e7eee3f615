"""A task's work: what a file holds, compared with what the broker holds, or with what its manifest says.

The broker's side does not come the way that the data came: not as Arrow but as the stored chunks, so that an error in
writing, in reading or in the broker's own Arrow is seen.
"""

from __future__ import annotations

import msgspec

from tallystick.core.errors import OffsetOutOfRange
from tallystick.core.message import Chunk
from tallystick.core.wire import MSGPACK, FetchResponse
from tallystick.link import Link
from tallystick.spark.archive.fingerprint import Fingerprint
from tallystick.spark.archive.layout import Archive
from tallystick.spark.archive.manifest import ArchivedFile, DamagedArchive

FETCH_BYTES = 8 * 1024 * 1024
FETCH_MESSAGES = 100_000

_decode = msgspec.msgpack.Decoder(FetchResponse).decode
_decode_chunk = msgspec.msgpack.Decoder(Chunk).decode


def checked_against_log(archive: Archive, link: Link, topic: str, file: ArchivedFile) -> ArchivedFile:
    """The file with its checksum, once the file and the broker's log have come to the same one."""
    checksum = log_checksum(link, topic, file.queue, file.start, file.end)
    checked = msgspec.structs.replace(file, checksum=checksum)
    check_file(archive, checked)
    return checked


def check_file(archive: Archive, file: ArchivedFile) -> None:
    """Read a file back and compare it with what its checksum says; an error names the file and what to do."""
    found = Fingerprint()
    for batch in archive.read_file(file, file.start, file.end):
        found.add_batch(batch)
    if found.rows != file.rows or found.value() != file.checksum:
        raise DamagedArchive(
            f"{archive.data}/{file.path} does not hold what the broker held: {found.rows:,} of {file.rows:,} rows, "
            f"checksum {found.value()} instead of {file.checksum}; nothing was trimmed"
        )


def log_checksum(link: Link, topic: str, queue: int, start: int, end: int) -> str:
    """The checksum of the offsets [start, end) of a queue, from the broker's log."""
    found, at = Fingerprint(), start
    path = ("topics", topic, "queues", str(queue), "messages")
    while at < end:
        most = min(FETCH_MESSAGES, end - at)
        piece = _decode(link.get_bytes(MSGPACK, *path, offset=at, max=most, max_bytes=FETCH_BYTES))
        if piece.next <= at:
            raise OffsetOutOfRange(f"topic {topic!r}, queue {queue} ends at {at:,}, before {end:,}")
        for raw in piece.chunks:
            found.add_chunk(_decode_chunk(raw), at, end)
        at = piece.next
    return found.value()
