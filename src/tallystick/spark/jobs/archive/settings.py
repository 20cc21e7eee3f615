"""What a run of the archive job is told, and what it tells."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.spark.archive.manifest import Gap


class ArchiveSettings(Struct, frozen=True, kw_only=True):
    """What to archive: topics by name or pattern, up to a time (so long before the broker's now) or to offsets."""

    url: str
    path: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    older_than_ms: int | None = None
    to_offsets: Mapping[str, Mapping[int, int]] = {}  # by topic and queue
    keep: bool = False  # archive, but do not trim the broker
    past_consumers: bool = False  # trim also what a consumer group has not settled yet
    dry_run: bool = False
    rows_at_once: int = 10_000_000  # messages of one step, which is what a kill can cost
    file_rows: int = 500_000
    patience_seconds: float = 120.0  # how long a broker that does not answer is waited for
    credentials: Credentials = field(default_factory=find_credentials)


class ArchivedTopic(Struct):
    """What a run did to one topic."""

    topic: str
    rows: int = 0
    bytes: int = 0
    files: int = 0
    verified: int = 0  # messages whose files were read back in this run
    manifests: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    trimmed_to: dict[int, int] = field(default_factory=dict)
    held_by: dict[int, str] = field(default_factory=dict)  # by queue, the consumer group that a trim stopped at


class ArchiveSummary(Struct):
    path: str
    dry_run: bool
    seconds: float
    topics: list[ArchivedTopic]

    @property
    def missing(self) -> int:
        """Messages that were dropped before they could be archived."""
        return sum(gap.end - gap.start for topic in self.topics for gap in topic.gaps)
