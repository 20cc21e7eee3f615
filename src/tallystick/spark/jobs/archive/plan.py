"""What a run of the archive job does to a topic next: where the manifests end, how far it may go, what was lost."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from msgspec import Struct

from tallystick.core.errors import Conflict, InvalidRequest, NotFound
from tallystick.core.names import check_name
from tallystick.core.wire import TopicView
from tallystick.link import Link
from tallystick.spark.archive.layout import Archive
from tallystick.spark.archive.manifest import Gap, manifest_name
from tallystick.spark.source.ranges import Range, divided

# A topic with few queues is divided as well, so that all cores have work; but not into crumbs of files.
TASKS = 16
ROWS_WORTH_A_TASK = 100_000


class TopicIdentity(Struct, frozen=True):
    """Whose topic it is: there may be others of that name on other brokers, or before and after a deletion."""

    store: str
    created_at: int


class ArchivePlan(Struct, frozen=True, kw_only=True):
    """One step of a run: it ends with one manifest."""

    topic: str
    identity: TopicIdentity
    number: int
    run: str
    ranges: list[Range]
    gaps: list[Gap]
    is_last: bool  # nothing that was asked for is left after it

    @property
    def manifest_name(self) -> str:
        return manifest_name(self.number)

    @property
    def rows(self) -> int:
        return sum(map(len, self.ranges))


def chosen_topics(link: Link, names: tuple[str, ...], pattern: str) -> list[str]:
    """The topics that were asked for, by name or by a pattern for whole names."""
    if bool(names) == bool(pattern):
        raise InvalidRequest("topics: give names, or a pattern for them, and not both", field="topics")
    known = [str(view["name"]) for view in link.get("topics")["topics"]]
    if pattern:
        try:
            return sorted(name for name in known if re.fullmatch(pattern, name))
        except re.error as error:
            raise InvalidRequest(f"pattern: {pattern!r} is no regular expression: {error}", field="pattern") from error
    for name in names:
        if check_name(name, "topic") not in known:
            raise NotFound(f"there is no topic {name!r} at {link.url}", field="topic")
    return list(dict.fromkeys(names))


def wanted_ends(link: Link, view: TopicView, before_ms: int | None, offsets: Mapping[int, int]) -> dict[int, int]:
    """By queue, where the archive is to end: the first message stored at or after a time, or an offset."""
    if before_ms is not None:
        found = link.get("topics", view.name, "offsets", timestamp=before_ms)["offsets"]
        return dict(enumerate(found))
    for queue, offset in offsets.items():
        if not 0 <= queue < view.queues or not 0 <= offset <= view.ends[queue]:
            known = f"ends at {view.ends[queue]:,}" if 0 <= queue < view.queues else "does not exist"
            raise InvalidRequest(
                f"offset {offset:,} of topic {view.name!r}, queue {queue}: it {known}", field="offsets"
            )
    return dict(offsets)


def unsettled(link: Link, topic: str) -> dict[int, tuple[int, str]]:
    """By queue, an offset up to which every consumer group has settled everything, and the group furthest behind."""
    found: dict[int, tuple[int, str]] = {}
    for group in link.get("groups")["groups"]:
        if group["topic"] != topic:
            continue
        # What is under lease lies before the group's place; only its age is told, and offsets follow from that.
        oldest = group.get("oldest_unsettled_at") if group.get("leased") else None
        leased = link.get("topics", topic, "offsets", timestamp=oldest)["offsets"] if oldest else []
        for one in group["queues"]:
            queue = int(one["queue"])
            place = min([int(one["offset"]), *leased[queue : queue + 1]])
            found[queue] = min(found.get(queue, (place, group["group"])), (place, group["group"]))
    return found


def next_plan(
    archive: Archive,
    identity: TopicIdentity,
    view: TopicView,
    wanted: Mapping[int, int],
    rows_at_once: int,
    file_rows: int,
) -> ArchivePlan:
    """The next step towards the wanted ends, which continues where the manifests end and never overlaps them."""
    if view.created_at != identity.created_at:
        raise Conflict(
            f"topic {view.name!r} was deleted and made again during this run (made at {identity.created_at} and "
            f"{view.created_at}): what was not archived by then is gone. Archive the new one to another path"
        )
    begins = _begins(archive, identity, view)
    most = max(1, rows_at_once // view.queues)
    ranges, is_last = [], True
    for queue, end in sorted(wanted.items()):
        start = max(begins[queue], view.starts[queue])
        upto = max(start, min(end, start + most))
        ranges.append(Range(view.name, queue, start, upto, created=view.created_at))
        is_last = is_last and end <= start + most
    manifests = archive.manifests(view.name)
    return ArchivePlan(
        topic=view.name,
        identity=identity,
        number=manifests[-1].number + 1 if manifests else 1,
        run=secrets.token_hex(6),
        ranges=divided(ranges, min(TASKS, sum(map(len, ranges)) // ROWS_WORTH_A_TASK), file_rows),
        gaps=[Gap(queue, at, view.starts[queue]) for queue, at in begins.items() if at < view.starts[queue]],
        is_last=is_last,
    )


def _begins(archive: Archive, identity: TopicIdentity, view: TopicView) -> dict[int, int]:
    """By queue, the first offset that no manifest speaks of."""
    manifests = archive.manifests(view.name)
    if not manifests:
        # What was dropped before anything was archived is not missing: the archive begins here.
        return dict(enumerate(view.starts))
    _check_identity(archive, identity, view.name)
    begins = {queue: view.begin(queue) for queue in range(view.queues)}
    for manifest in manifests:
        ends = [(file.queue, file.end) for file in manifest.files] + [(gap.queue, gap.end) for gap in manifest.gaps]
        for queue, end in ends:
            begins[queue] = max(begins.get(queue, 0), end)
    return begins


def _check_identity(archive: Archive, identity: TopicIdentity, topic: str) -> None:
    last = archive.manifests(topic)[-1]
    if TopicIdentity(last.store, last.created_at) != identity:
        raise Conflict(
            f"the archive at {archive.path} holds topic {topic!r} of store {last.store}, made at {last.created_at}; "
            f"this one is of store {identity.store}, made at {identity.created_at}: it was deleted and made again, or "
            "is another broker's. Archive it to another path"
        )
