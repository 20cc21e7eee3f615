"""The archive job: closed ranges of topics become Parquet, are verified, and only then leave the broker.

For each topic, in steps of a bounded number of messages:

1. *write*: tasks write data files under names of their own; nobody sees them yet;
2. *verify*: tasks read every file back and compare it with the broker's log, which they read in another form;
3. *publish*: one manifest, made exclusively, makes all files of the step count at once;
4. *trim*: the broker drops what manifests cover and this run has verified.

Killed before 3, a run has changed nothing, and the next one that publishes removes its files. Killed after 3, the next
run finds the manifest, verifies again what it did not verify itself, and trims. Of two runs at once one publishes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tallystick.core.errors import Conflict, DamagedArchive, Forbidden, InvalidRequest, TallystickError
from tallystick.spark.archive.layout import Archive
from tallystick.spark.archive.manifest import ArchivedFile, Manifest, publish
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.jobs.archive.files import write_range
from tallystick.spark.jobs.archive.plan import (
    ArchivePlan,
    TopicIdentity,
    chosen_topics,
    next_plan,
    unsettled,
    wanted_ends,
)
from tallystick.spark.jobs.archive.settings import ArchivedTopic, ArchiveSettings, ArchiveSummary
from tallystick.spark.jobs.archive.verification import check_file, checked_against_log
from tallystick.spark.permissions import Permissions, permissions_at
from tallystick.spark.source.messages import read_log
from tallystick.spark.source.ranges import Range
from tallystick.spark.source.topics import topic_view
from tallystick.spark.tasks import Report, SparkWorkers, TaskWorkers, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_AT_ONCE = 64  # between two words about the progress
T = TypeVar("T")
R = TypeVar("R")


def run_archive(spark: SparkSession, settings: ArchiveSettings, report: Report = quiet) -> ArchiveSummary:
    """Archive on the executors of a Spark session, which must reach the same path as the driver."""
    return archive_with(SparkWorkers(spark), settings, report)


def archive_with(workers: TaskWorkers, settings: ArchiveSettings, report: Report = quiet) -> ArchiveSummary:
    began = time.monotonic()
    _check(settings)
    check_command_lines(settings.credentials)
    with BrokersLink(settings.url, patience=settings.patience_seconds, credentials=settings.credentials) as link:
        names = chosen_topics(link, settings.topics or tuple(settings.to_offsets), settings.pattern)
        permissions = permissions_at(link)
        if settings.pattern and not permissions.sees_every_topic():
            report(f"the token {permissions.name!r} does not see every topic; the pattern chose from the others")
        if not (settings.keep or settings.dry_run):
            _require_trim(permissions, names, settings.past_consumers)
        done = [TopicRun(workers, settings, report, link, name).run() for name in names]
    return ArchiveSummary(settings.path, settings.dry_run, time.monotonic() - began, done)


def _check(settings: ArchiveSettings) -> None:
    if (settings.older_than_ms is None) != bool(settings.to_offsets):
        raise InvalidRequest(
            "say how far to archive: older than a time, or to offsets, and not both", field="older_than"
        )
    if settings.to_offsets and (
        settings.pattern or set(settings.topics or settings.to_offsets) != set(settings.to_offsets)
    ):
        raise InvalidRequest("the offsets name the topics; do not name others beside them", field="to_offsets")
    if not Archive(settings.path).is_local:
        raise InvalidRequest(
            f"{settings.path}: an archive is written to a directory, which may be a mounted one; its manifests need a "
            "file system that gives a name only once. It can be read from anywhere, once it is copied there",
            field="path",
        )


def _require_trim(permissions: Permissions, names: Sequence[str], past_consumers: bool) -> None:
    """Refuse before anything is written what the trim would be refused for, and a trim past groups that the token does
    not see."""
    for topic in names:
        if not permissions.may("operate", topic):
            raise Forbidden(
                f"topic: {permissions.name!r} may not trim {topic!r}, so nothing was archived. Use a token with the "
                "permission `operate` on this topic, or leave the messages in the broker (--keep)",
                field="topic",
            )
        if not past_consumers and not permissions.sees_every_group_of(topic):
            raise Forbidden(
                f"topic: {permissions.name!r} does not see every consumer group of {topic!r}, so a trim could drop "
                "messages that a group has not settled. Nothing was archived. Use a token with the permission "
                "`operate` on every group, or leave the messages in the broker (--keep), or trim past consumers "
                "(--past-consumers)",
                field="topic",
            )


class TopicRun:
    """One topic in one run, step by step."""

    def __init__(
        self, workers: TaskWorkers, settings: ArchiveSettings, report: Report, link: BrokersLink, topic: str
    ) -> None:
        self._workers, self._settings, self._link, self._topic = workers, settings, link, topic
        self._report: Report = lambda text: report(f"{topic}: {text}")
        self._archive = Archive(settings.path)
        self._verified: set[str] = set()
        self._done = ArchivedTopic(topic)

    def run(self) -> ArchivedTopic:
        info = self._link.get("info")
        view = topic_view(self._link, self._topic)
        older_than = self._settings.older_than_ms
        before_ms = None if older_than is None else int(info["now_ms"]) - older_than
        offsets = self._settings.to_offsets.get(self._topic, {})
        wanted = wanted_ends(self._link, view, before_ms, offsets)
        identity = TopicIdentity(self._link.identity, view.created_at)
        while not self._step(identity, wanted, before_ms):
            pass
        return self._done

    def _step(self, identity: TopicIdentity, wanted: Mapping[int, int], before_ms: int | None) -> bool:
        """One manifest further, if anything is left to archive; says whether this was the last step."""
        settings, view = self._settings, topic_view(self._link, self._topic)
        most = sys.maxsize if settings.dry_run else settings.rows_at_once
        plan = next_plan(self._archive, identity, view, wanted, most, settings.file_rows)
        self._tell_gaps(plan)
        if settings.dry_run:
            self._done.rows += plan.rows
            self._report(f"would archive {plan.rows:,} messages")
            return True
        if plan.ranges or plan.gaps:
            left_behind = self._unnamed()
            self._publish(plan, self._files(plan), before_ms if plan.is_last else None)
            # Whoever wrote these had planned before this manifest, so nobody can publish a manifest any more that
            # names them.
            for path in left_behind:
                path.unlink(missing_ok=True)
        if not settings.keep and self._archive.manifests(self._topic):
            self._trim(wanted)
        return plan.is_last

    def _tell_gaps(self, plan: ArchivePlan) -> None:
        self._done.gaps += plan.gaps
        for gap in plan.gaps:
            self._report(
                f"queue {gap.queue}: offsets {gap.start:,} to {gap.end:,} are missing: the broker dropped them before "
                "they were archived (its retention is shorter than the time between two runs)"
            )

    # --- data ------------------------------------------------------------------------------------------------

    def _files(self, plan: ArchivePlan) -> list[ArchivedFile]:
        """The plan's ranges as files that hold what the broker holds."""
        try:
            written = self._write(plan)
            self._report(f"written: {plan.rows:,} messages in {len(written)} files")
            verified = self._verify(written)
        except TallystickError as error:
            # Another run may have published, trimmed the broker and swept up the files of this one.
            if (self._manifest_directory() / plan.manifest_name).exists():
                raise self._overtaken(plan) from error
            raise
        self._report(f"verified: {plan.rows:,} messages")
        return verified

    def _write(self, plan: ArchivePlan) -> list[ArchivedFile]:
        url, patience = self._settings.url, self._settings.patience_seconds
        run, data, shown = plan.run, Path(self._archive.data), self._settings.credentials

        def work(piece: Range) -> list[ArchivedFile]:
            return write_range(data, run, piece, read_log(url, piece, patience, shown))

        found = self._each(work, plan.ranges, "writing")
        for piece, files in zip(plan.ranges, found, strict=True):
            _check_whole(piece, files)
        return [file for files in found for file in files]

    def _verify(self, files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        archive, topic, url = self._archive, self._topic, self._settings.url
        patience, shown = self._settings.patience_seconds, self._settings.credentials

        def work(file: ArchivedFile) -> ArchivedFile:
            with BrokersLink(url, patience=patience, credentials=shown) as link:
                return checked_against_log(archive, link, topic, file)

        return self._noted(self._each(work, files, "verifying"))

    def _verify_again(self, files: Sequence[ArchivedFile]) -> None:
        archive = self._archive

        def work(file: ArchivedFile) -> ArchivedFile:
            check_file(archive, file)
            return file

        self._noted(self._each(work, files, "verifying again"))

    def _noted(self, files: list[ArchivedFile]) -> list[ArchivedFile]:
        self._verified.update(file.path for file in files)
        self._done.verified += sum(file.rows for file in files)
        return files

    def _each(self, work: Callable[[T], R], items: Sequence[T], word: str) -> list[R]:
        done: list[R] = []
        for at in range(0, len(items), TASKS_AT_ONCE):
            self._report(f"{word} part {at + 1} of {len(items)}")
            done += self._workers.each(work, items[at : at + TASKS_AT_ONCE])
        return done

    # --- manifest --------------------------------------------------------------------------------------------

    def _publish(self, plan: ArchivePlan, files: list[ArchivedFile], complete_to: int | None) -> None:
        manifest = Manifest(
            number=plan.number,
            topic=plan.topic,
            store=plan.identity.store,
            created_at=plan.identity.created_at,
            run=plan.run,
            written_at=time.time_ns() // 1_000_000,
            complete_to=complete_to,
            files=files,
            gaps=plan.gaps,
        )
        if not publish(self._manifest_directory(), manifest):
            for file in files:
                (Path(self._archive.data) / file.path).unlink(missing_ok=True)
            raise self._overtaken(plan)
        self._done.manifests.append(plan.number)
        self._done.rows += plan.rows
        self._done.files += len(files)
        self._done.bytes += sum(file.bytes for file in files)
        self._report(f"published: manifest {plan.number}")

    def _manifest_directory(self) -> Path:
        return Path(self._archive.manifest_directory(self._topic))

    def _overtaken(self, plan: ArchivePlan) -> Conflict:
        return Conflict(
            f"another run has archived topic {plan.topic} meanwhile (manifest {plan.number} in {self._archive.path}): "
            "nothing of this run counts. Run again to go on from there"
        )

    def _unnamed(self) -> list[Path]:
        """Files that no manifest names: of runs that were killed, or that planned as this one did and are at work."""
        data = Path(self._archive.data)
        named = {data / file.path for file in self._archive.files(self._topic)}
        found = [path for path in (data / f"topic={self._topic}").glob("*/*.parquet") if path not in named]
        return [*found, *self._manifest_directory().glob(".*.draft")]

    # --- trim ------------------------------------------------------------------------------------------------

    def _trim(self, wanted: Mapping[int, int]) -> None:
        """Let the broker drop what is archived, as far as was asked for; files of earlier runs are verified anew."""
        starts = topic_view(self._link, self._topic).starts
        ends = {queue: end for queue, end in self._droppable(wanted).items() if end > starts[queue]}
        if not ends:
            return
        self._verify_again(
            [
                file
                for file in self._archive.files(self._topic)
                if file.queue in ends and starts[file.queue] < file.end and file.start < ends[file.queue]
                if file.path not in self._verified
            ]
        )
        self._link.post("topics", self._topic, "trim", offsets={str(queue): end for queue, end in ends.items()})
        self._done.trimmed_to.update(ends)
        self._report("trimmed: " + ", ".join(f"queue {queue} to {end:,}" for queue, end in sorted(ends.items())))

    def _droppable(self, wanted: Mapping[int, int]) -> dict[int, int]:
        """By queue, up to where the broker's messages are in the archive, were asked for, and nobody waits for them."""
        covered = self._archive.covers(self._topic)
        held = {} if self._settings.past_consumers else unsettled(self._link, self._topic)
        ends: dict[int, int] = {}
        for queue in wanted.keys() & covered.keys():
            end = min(wanted[queue], covered[queue][1])
            place, group = held.get(queue, (end, ""))
            if place < end:
                self._done.held_by[queue] = group
                self._report(f"queue {queue}: not trimmed beyond {place:,}, which group {group} has not settled yet")
            ends[queue] = min(end, place)
        return ends


def _check_whole(piece: Range, files: list[ArchivedFile]) -> None:
    """The files of a range hold each of its offsets once."""
    at = piece.start
    for file in files:
        if file.start != at:
            break
        at = file.end
    if at != piece.end:
        raise DamagedArchive(
            f"offsets {piece.start:,} to {piece.end:,} of topic {piece.topic!r}, queue {piece.queue} were not all "
            f"written: they stop at {at:,}"
        )
