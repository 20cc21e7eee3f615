"""`tallystick spark report`: what happened in a time range, as an HTML page and as figures in Parquet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.credentials import given_credentials
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table
from tallystick.cli.spark.options import Jars, Master, progress
from tallystick.cli.times import WHEN, moment
from tallystick.core.names import check_name

if TYPE_CHECKING:
    from tallystick.spark.jobs.report import ReportSummary


def add(jobs: typer.Typer) -> None:
    jobs.command("report", help="Draw what happened in a time range: an HTML page, and the figures as Parquet.")(report)


def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where report.html and figures/ are written.")
    ] = Path("tallystick-report"),
    since: Annotated[str, typer.Option("--since", metavar="TIME", help=f"Begin of the range: {WHEN}.")] = "24h",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="End of the range, in the same way.", show_default="now")
    ] = "",
    topic: Annotated[
        list[str], typer.Option("--topic", metavar="TOPIC", help="Only this topic (may be repeated); default: all.")
    ] = [],  # noqa: B006  Typer's way to say "none"; it is never changed
    archive: Annotated[
        str,
        typer.Option("--archive", metavar="PATH", help="Archive from which to read trimmed messages."),
    ] = "",
    master: Master = "",
    jars: Jars = [],  # noqa: B006
    url: Url = "",
    as_json: Json = False,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    until_ms = moment(until, "--until", now_ms) if until else None
    since_ms = moment(since, "--since", now_ms if until_ms is None else until_ms)
    topics = tuple(check_name(name, "topic") for name in topic)
    with progress() as say:
        from tallystick.spark.jobs.report import ReportSettings, run_report
        from tallystick.spark.session import job_session

        settings = ReportSettings(
            url=url,
            credentials=given_credentials(),
            output=str(output),
            since_ms=since_ms,
            until_ms=until_ms,
            topics=topics,
            archive=archive or None,
        )
        with job_session("report", master or None, jars) as spark:
            summary = run_report(spark, settings, say)
    _show(summary, as_json)


def _show(summary: ReportSummary, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(msgspec.to_builtins(summary))
        return
    print_table(["what", "how much#"], _rows(summary))
    if summary.hidden:
        note(f"the token {summary.hidden}; the figures leave out the rest")
    typer.echo(f"\n{summary.page}")


def _rows(summary: ReportSummary) -> list[tuple[str, str | int]]:
    def span(milliseconds: float | None) -> str:
        return "-" if milliseconds is None else f"{milliseconds:,.0f} ms"

    return [
        ("topics", summary.topics),
        ("messages", summary.messages),
        ("trimmed, not counted, at most", summary.missing),
        ("bytes", summary.bytes),
        ("committed", summary.committed),
        ("rolled back", summary.rolled_back),
        ("to the outcome, p50", span(summary.p50_ms)),
        ("to the outcome, p95", span(summary.p95_ms)),
        ("to the outcome, p99", span(summary.p99_ms)),
        ("pending", summary.pending),
        ("parked", summary.parked),
        ("dead letters", summary.dead_letters),
        ("messages behind", summary.lag),
    ]
