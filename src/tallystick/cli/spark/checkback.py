"""`tallystick spark checkback`: decide a backlog of pending transactions in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tallystick.broker.config import Config, load_config
from tallystick.cli.credentials import given_credentials
from tallystick.cli.options import Json, Url
from tallystick.cli.output import note, print_json, print_table
from tallystick.cli.spark.options import Jars, Master, progress
from tallystick.cli.times import parsed
from tallystick.core.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.spark.jobs.checkback import CheckbackSummary, ProducerDatabase

_HELP = (
    "Decide pending transactions in bulk, from the barrier tables of their producers' databases. "
    "Safe beside running producers and the online check, and to be stopped and run again."
)


Databases = Annotated[
    list[str],
    typer.Option(
        "--database",
        metavar="[NAME=]URL",
        help="A database of producers: postgresql://, mysql:// or sqlite://; or the name of one in the broker's "
        "own configuration. May be repeated. Default: all of that configuration.",
    ),
]
Sources = Annotated[
    list[str],
    typer.Option(
        "--source",
        metavar="[NAME=]SOURCE",
        help="Another name by which producers know the database, as the column `source` shows it.",
    ),
]


def add(jobs: typer.Typer) -> None:
    jobs.command("checkback", help=_HELP)(checkback)


def checkback(
    database: Databases = [],  # noqa: B006  Typer's way to say "none"; it is never changed
    group: Annotated[
        list[str], typer.Option("--group", metavar="GROUP", help="Only of this producer group; may be repeated.")
    ] = [],  # noqa: B006
    source: Sources = [],  # noqa: B006
    sourceless: Annotated[
        bool, typer.Option("--sourceless", help="Also transactions that do not say which database is theirs.")
    ] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only those prepared longer ago than this.")
    ] = "1m",
    state: Annotated[
        Literal["pending", "prepared", "parked"], typer.Option("--state", help="pending: prepared and parked.")
    ] = "pending",
    barrier_table: Annotated[
        str, typer.Option("--barrier-table", metavar="TABLE", help="Name of the barrier table.", show_default=False)
    ] = "",
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="How long a batch waits for running local transactions.")
    ] = "1s",
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Connections to a database at a time, at most.")
    ] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The broker's TOML file, for its databases.")
    ] = None,
    master: Master = "",
    jars: Jars = [],  # noqa: B006
    url: Url = "",
    as_json: Json = False,
) -> None:
    known = load_config(config)
    with progress() as say:
        from tallystick.spark.jobs.checkback import CheckbackSettings, known_databases, run_checkback
        from tallystick.spark.session import job_session

        settings = CheckbackSettings(
            url=url,
            credentials=given_credentials(),
            databases=_databases(database, source, known),
            groups=tuple(group),
            sourceless=sourceless,
            table=barrier_table or known.barrier_table,
            state=state,
            older_than_ms=parsed(older_than, "--older-than"),
            wait=parsed(wait, "--wait") / 1000,
            connections=connections,
            dry_run=dry_run,
        )
        settings.check()  # this and the next before Spark is started for nothing
        known_databases(settings)
        with job_session("checkback", master or None, jars) as spark:
            summary = run_checkback(spark, settings, say)
    _show(summary, as_json)


def _databases(given: Sequence[str], sources: Sequence[str], known: Config) -> tuple[ProducerDatabase, ...]:
    from tallystick.spark.jobs.checkback import ProducerDatabase

    texts = [_text(one, known) for one in given or known.databases]
    databases = [ProducerDatabase.parse(text) for text in texts]
    names = {database.name: [] for database in databases}  # type: dict[str, list[str]]
    for source in sources:
        name, equals, rest = source.partition("=")
        if equals and name in names:
            names[name].append(rest)
        elif len(databases) == 1:
            names[databases[0].name].append(source)
        else:
            raise ConfigError(f"--source: which database is {source}? Write NAME=SOURCE", field="source")
    return tuple(ProducerDatabase(one.database, one.name, tuple(names[one.name])) for one in databases)


def _text(given: str, known: Config) -> str:
    """`NAME=URL` for a name of the broker's configuration; anything else as it is."""
    if "://" in given:
        return given
    if given not in known.databases:
        names = ", ".join(sorted(known.databases)) or "none"
        raise ConfigError(
            f"--database: {given[:80]!r} is neither an address nor a database of the broker's configuration "
            f"(it has: {names}); give that with --config or TALLYSTICK_DATABASES",
            field="database",
        )
    return f"{given}={known.databases[given]}"


def _show(summary: CheckbackSummary, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json({**msgspec.to_builtins(summary), "rate": round(summary.rate)})
        return
    print_table(["transactions", "count#"], _rows(summary))
    if summary.decided:
        typer.echo("")
        print_table(
            ["database", "outcome", "count#"],
            [(one.database, one.outcome, one.count) for one in summary.decided],
        )
    if summary.foreign_sources:
        typer.echo("")
        print_table(
            ["left alone: database", "checked by", "count#"],
            [(one.source or "(not named)", one.check, one.count) for one in summary.foreign_sources],
        )
        note("if one of these is a database that was given, say so with --source")
    if summary.hidden:
        note(f"the token {summary.hidden}; others were left alone")
    if summary.dry_run:
        note("a dry run: nothing was changed")


def _rows(summary: CheckbackSummary) -> list[tuple[str, str | int]]:
    rows: list[tuple[str, str | int]] = [
        ("pending", summary.pending),
        ("committed", summary.committed),
        ("rolled back", summary.rolled_back),
        ("still running, left alone", summary.unknown),
        ("of other databases, left alone", summary.foreign),
        ("not due for a check yet", summary.not_due),
    ]
    if summary.dry_run:
        rows.append(("without a row, to be decided", summary.open))
    return [*rows, ("seconds", f"{summary.seconds:,.1f}"), ("outcomes a second", f"{summary.rate:,.0f}")]
