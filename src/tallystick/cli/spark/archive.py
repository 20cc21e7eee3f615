"""`tallystick spark archive`: move old messages to Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.cli.credentials import given_credentials
from tallystick.cli.failures import FAILED
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table
from tallystick.cli.spark.offsets import topic_offsets
from tallystick.cli.spark.options import Jars, Master, progress
from tallystick.cli.times import parsed

if TYPE_CHECKING:
    from tallystick.spark.jobs.archive import ArchivedTopic, ArchiveSummary


def add(jobs: typer.Typer) -> None:
    jobs.command("archive", help="Move messages to Parquet files, verify them, and trim the broker.")(archive)


def archive(
    path: Annotated[str, typer.Option("--path", metavar="DIR", help="The archive's directory.")],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", help="Which topics.", show_default=False)
    ] = None,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="DURATION", help="Archive what was stored longer ago, e.g. 7d; 0s: all."),
    ] = "",
    to_offsets: Annotated[
        str,
        typer.Option("--to-offsets", metavar="JSON", help='Archive up to these instead, e.g. {"orders": {"0": 1200}}.'),
    ] = "",
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="REGEX", help="All topics with such names, instead of TOPIC.")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the messages in the broker as well.")] = False,
    past_consumers: Annotated[
        bool, typer.Option("--past-consumers", help="Trim also what consumer groups have not settled yet.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be archived.")] = False,
    allow_gaps: Annotated[
        bool,
        typer.Option("--allow-gaps", help="End with 0 even if the broker dropped messages before they were archived."),
    ] = False,
    rows_at_once: Annotated[
        int,
        typer.Option("--rows-at-once", min=1, help="Messages of a topic between two manifests: what a kill can cost."),
    ] = 10_000_000,
    master: Master = "",
    jars: Jars = [],  # noqa: B006  Typer's way to say "none"; it is never changed
    url: Url = "",
    as_json: Json = False,
) -> None:
    with progress() as say:
        from tallystick.spark.jobs.archive import ArchiveSettings, run_archive
        from tallystick.spark.session import job_session

        settings = ArchiveSettings(
            url=url,
            credentials=given_credentials(),
            path=path,
            topics=tuple(topics or ()),
            pattern=pattern,
            older_than_ms=parsed(older_than, "--older-than") if older_than else None,
            to_offsets=topic_offsets(to_offsets, "--to-offsets"),
            keep=keep,
            past_consumers=past_consumers,
            dry_run=dry_run,
            rows_at_once=rows_at_once,
        )
        with job_session("archive", master or None, jars) as spark:
            summary = run_archive(spark, settings, say)
    _show(summary, as_json)
    if summary.missing:
        note(f"{summary.missing:,} messages were dropped by the broker before they were archived; see the manifests")
        raise typer.Exit(0 if allow_gaps else FAILED)


def _show(summary: ArchiveSummary, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(summary, str_keys=True))
        return
    print_table(
        ["topic", "messages#", "bytes#", "files#", "verified#", "missing#", "trimmed to", "held by"],
        [_row(topic) for topic in summary.topics],
        nothing="no topic has such a name",
    )
    rows = sum(topic.rows for topic in summary.topics)
    rate = f" ({rows / summary.seconds:,.0f}/s)" if rows and summary.seconds and not summary.dry_run else ""
    note(f"{'would archive' if summary.dry_run else 'archived'} {rows:,} messages in {summary.seconds:.1f} s{rate}")


def _row(topic: ArchivedTopic) -> list[Any]:
    trimmed = ", ".join(f"{queue}: {end:,}" for queue, end in sorted(topic.trimmed_to.items()))
    missing = sum(gap.end - gap.start for gap in topic.gaps)
    held = ", ".join(f"{queue}: {group}" for queue, group in sorted(topic.held_by.items()))
    return [topic.topic, topic.rows, topic.bytes, topic.files, topic.verified, missing, trimmed, held]
