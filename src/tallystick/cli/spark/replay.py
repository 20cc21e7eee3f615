"""`tallystick spark replay`: send archived messages, or a range of a live topic, once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.credentials import given_credentials
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table
from tallystick.cli.spark.offsets import queue_offsets
from tallystick.cli.spark.options import Jars, Master, progress
from tallystick.cli.times import date

if TYPE_CHECKING:
    from tallystick.spark.jobs.replay import ReplaySummary

_TIME = "TIME"
_OFFSETS = 'e.g. {"0": 1200, "1": 900}'


def add(jobs: typer.Typer) -> None:
    jobs.command("replay", help="Send a closed range of messages into a topic once more, exactly once.")(replay)


def replay(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic whose messages are replayed.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where they go; the same topic if not given.")] = "",
    archive: Annotated[
        str, typer.Option("--archive", metavar="PATH", help="Read from this archive; without it from the broker's log.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar=_TIME, help="First time of storing, e.g. 2026-11-15T08:30 (UTC).")
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar=_TIME, help="Up to this time of storing, without it.")] = "",
    from_offsets: Annotated[
        str, typer.Option("--from-offsets", metavar="JSON", help=f"First offset of each queue, {_OFFSETS}.")
    ] = "",
    to_offsets: Annotated[
        str, typer.Option("--to-offsets", metavar="JSON", help=f"One past the last offset of each queue, {_OFFSETS}.")
    ] = "",
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only messages with this key; may be repeated.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only messages with this tag; may be repeated.")
    ] = None,
    marks: Annotated[
        bool, typer.Option("--marks/--no-marks", help="Add headers that tell a message's id and place before.")
    ] = True,
    replay_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="To send the same range another time: a name for that replay.")
    ] = "",
    master: Master = "",
    jars: Jars = [],  # noqa: B006  Typer's way to say "none"; it is never changed
    url: Url = "",
    as_json: Json = False,
) -> None:
    with progress() as say:
        from tallystick.spark.jobs.replay import ReplaySettings, run_replay
        from tallystick.spark.session import job_session

        settings = ReplaySettings(
            url=url,
            credentials=given_credentials(),
            topic=topic,
            to=to,
            archive=archive,
            # No durations: the same command must mean the same range when it is given again.
            since_ms=date(since, "--since") if since else None,
            until_ms=date(until, "--until") if until else None,
            from_offsets=queue_offsets(from_offsets, "--from-offsets"),
            to_offsets=queue_offsets(to_offsets, "--to-offsets"),
            keys=tuple(key or ()),
            tags=tuple(tag or ()),
            marked=marks,
            id=replay_id,
        )
        settings.check()  # before Spark is started for nothing
        with job_session("replay", master or None, jars) as spark:
            summary = run_replay(spark, settings, say)
    _show(summary, as_json)


def _show(summary: ReplaySummary, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(summary, str_keys=True))
        return
    print_table(
        ["queue#", "from offset#", "to offset#"],
        [[queue, start, end] for queue, (start, end) in sorted(summary.ranges.items())],
    )
    before = f"; {summary.steps_before} of {summary.steps} steps had been done before" if summary.steps_before else ""
    note(f"{summary.messages:,} messages sent to {summary.to} in {summary.seconds:.1f} s{before}")
    note(f"the replay is known as {summary.app}: the same command again sends nothing")
