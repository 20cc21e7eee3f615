"""`tallystick spark reconcile`: do the producers' databases, the broker and the consumers' databases agree?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.barrier.names import BARRIER_TABLE
from tallystick.cli.credentials import given_credentials
from tallystick.cli.failures import DAMAGED, UNFINISHED
from tallystick.cli.options import Json, Url
from tallystick.cli.output import print_json, print_table, span, when
from tallystick.cli.spark.options import Jars, Master, progress
from tallystick.cli.times import moment, parsed
from tallystick.core.errors import InvalidRequest

if TYPE_CHECKING:
    from tallystick.spark.jobs.reconcile import Consumer, ReconcileSettings, ReconcileSummary

EXIT_CODES = (
    "Exit codes: 0 clean; 6 damage was found; 7 no damage, but something is in doubt or waiting (0 with "
    "--allow-in-doubt). Others as everywhere: 1 failed; 2 wrong usage; 4 broker unreachable."
)

_TIME = "a time such as 2026-11-15T08:30 (UTC, unless it has a zone), or how long ago: 90m, 24h"
Texts = list[str]
Producers = Annotated[
    Texts,
    typer.Option("--producer", metavar="URL", help="Database of producers, as postgresql://...; may be repeated."),
]
ProducerGroups = Annotated[
    Texts, typer.Option("--producer-group", metavar="GROUP", help="Whose database is given; default: all groups.")
]
Consumers = Annotated[
    Texts,
    typer.Option("--consumer", metavar="GROUP=URL", help="A consumer group and its database; may be repeated."),
]
Effects = Annotated[
    Texts,
    typer.Option(
        "--effects",
        metavar="GROUP=TABLE.COLUMN",
        help="Where the group's effects are, by message id; or GROUP=QUERY with a column message_id.",
    ),
]
Reads = Annotated[
    Texts,
    typer.Option("--reads", metavar="GROUP=TOPIC,...", help="The topics of a group; default: as the broker knows."),
]
Tags = Annotated[Texts, typer.Option("--tags", metavar="GROUP=TAG,...", help="The tags that a group subscribes to.")]
Joined = Annotated[
    Texts, typer.Option("--joined", metavar="GROUP=TIME", help="When a group began to read, if not at the beginning.")
]
Brokers = Annotated[
    Texts, typer.Option("--broker", metavar="URL", help="Another broker besides --url; may be repeated.")
]
NoBroker = Annotated[bool, typer.Option("--no-broker", help="Compare producers and consumers without a broker.")]
Topics = Annotated[Texts, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")]
Transactional = Annotated[
    Texts,
    typer.Option("--transactional", metavar="TOPIC", help="Each message of this topic must come from a transaction."),
]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help=f"Only what began since: {_TIME}.")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Only what began before, in the same way.")]
Grace = Annotated[
    str, typer.Option("--grace", metavar="DURATION", help="What is younger is under way, not lost. 0s: nothing runs.")
]
LateAfter = Annotated[
    str, typer.Option("--late-after", metavar="DURATION", help="List what became visible or was applied later.")
]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="PATH", help="Write all findings there: PATH.parquet or PATH.csv.")
]
BarrierTable = Annotated[str, typer.Option("--barrier-table", metavar="TABLE", help="Name of the barrier table.")]
ArchivePath = Annotated[
    str, typer.Option("--archive", metavar="PATH", help="Archive that has what the broker has trimmed.")
]
ConsumerDedup = Annotated[
    bool, typer.Option("--consumer-dedup", help="Producers use the consumer-dedup mode: read the headers as well.")
]
Digests = Annotated[
    bool,
    typer.Option("--digests", help="Read values too, and compare them with the digests that consumers have kept."),
]
AllowInDoubt = Annotated[
    bool, typer.Option("--allow-in-doubt", help="End with 0 if something is in doubt or waiting, but nothing damaged.")
]
Examples = Annotated[int, typer.Option("--examples", min=0, help="How many findings of each kind are shown.")]


def add(jobs: typer.Typer) -> None:
    jobs.command(
        "reconcile",
        help="Compare producers' databases, the broker and consumers' databases as sets; any one may be left out.",
        epilog=EXIT_CODES,
    )(reconcile)


def reconcile(
    producer: Producers = [],  # noqa: B006  Typer's way to say "none"; never changed, here and below
    producer_group: ProducerGroups = [],  # noqa: B006
    consumer: Consumers = [],  # noqa: B006
    effects: Effects = [],  # noqa: B006
    reads: Reads = [],  # noqa: B006
    tags: Tags = [],  # noqa: B006
    joined: Joined = [],  # noqa: B006
    broker: Brokers = [],  # noqa: B006
    no_broker: NoBroker = False,
    topic: Topics = [],  # noqa: B006
    transactional: Transactional = [],  # noqa: B006
    since: Since = "",
    until: Until = "",
    grace: Grace = "60s",
    late_after: LateAfter = "",
    output: Output = "",
    barrier_table: BarrierTable = BARRIER_TABLE,
    archive: ArchivePath = "",
    consumer_dedup: ConsumerDedup = False,
    digests: Digests = False,
    allow_in_doubt: AllowInDoubt = False,
    examples: Examples = 10,
    master: Master = "",
    jars: Jars = [],  # noqa: B006
    url: Url = "",
    as_json: Json = False,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    groups = _Groups(consumer, effects, reads, tags, joined, now_ms)
    given: dict[str, Any] = {
        "brokers": () if no_broker else (url, *broker),
        "credentials": given_credentials(),
        "producers": tuple(producer),
        "producer_groups": tuple(producer_group),
        "topics": tuple(topic),
        "transactional": tuple(transactional),
        "archive": archive,
        "since_ms": moment(since, "--since", now_ms) if since else None,
        "until_ms": moment(until, "--until", now_ms) if until else None,
        "grace_ms": parsed(grace, "--grace"),
        "late_after_ms": parsed(late_after, "--late-after") if late_after else None,
        "consumer_dedup": consumer_dedup,
        "digests": digests,
        "barrier_table": barrier_table,
        "output": output,
        "examples": examples,
    }
    summary = _run(given, groups, master, jars)
    _show(summary, as_json)
    raise typer.Exit(exit_code(summary, allow_in_doubt))


def exit_code(summary: ReconcileSummary, allow_in_doubt: bool) -> int:
    if summary.damage:
        return DAMAGED
    return UNFINISHED if summary.unfinished and not allow_in_doubt else 0


def _run(given: dict[str, Any], groups: _Groups, master: str, jars: Sequence[str]) -> ReconcileSummary:
    with progress() as say:
        from tallystick.spark.jobs.reconcile import ReconcileSettings, run_reconcile
        from tallystick.spark.session import job_session

        settings: ReconcileSettings = ReconcileSettings(consumers=groups.consumers(), **given)
        settings.check()  # before Spark is started for nothing
        with job_session("reconcile", master or None, jars) as spark:
            return run_reconcile(spark, settings, say)


class _Groups:
    """What was said of consumer groups, option by option."""

    def __init__(self, consumer: Texts, effects: Texts, reads: Texts, tags: Texts, joined: Texts, now_ms: int) -> None:
        self._databases = _by_group(consumer, "--consumer")
        self._effects = _by_group(effects, "--effects")
        self._reads, self._tags = _by_group(reads, "--reads"), _by_group(tags, "--tags")
        self._joined = {name: moment(at, "--joined", now_ms) for name, at in _by_group(joined, "--joined").items()}
        options: dict[str, Iterable[str]] = {
            "--effects": self._effects,
            "--reads": self._reads,
            "--tags": self._tags,
            "--joined": self._joined,
        }
        for option, named in options.items():
            for group in named:
                if group not in self._databases:
                    raise InvalidRequest(f"{option}: group {group!r} is not given by --consumer", field=option)

    def consumers(self) -> tuple[Consumer, ...]:
        from tallystick.spark.jobs.reconcile import Consumer

        return tuple(
            Consumer(
                group=group,
                database=database,
                topics=_listed(self._reads.get(group, "")),
                tags=_listed(self._tags.get(group, "")),
                effects=_query(self._effects.get(group, "")),
                since_ms=self._joined.get(group),
            )
            for group, database in self._databases.items()
        )


def _by_group(given: Texts, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        group, equals, value = text.partition("=")
        if not equals or not group or not value:
            raise InvalidRequest(f"{option}: {text!r} is not of the form GROUP=...", field=option)
        if group in found:
            raise InvalidRequest(f"{option}: group {group!r} is given twice", field=option)
        found[group] = value
    return found


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _query(text: str) -> str:
    """`TABLE.COLUMN` as a query; a query as it is."""
    if not text or " " in text.strip():
        return text
    table, dot, column = text.rpartition(".")
    if not dot:
        raise InvalidRequest(f"--effects: {text!r} is neither TABLE.COLUMN nor a query", field="--effects")
    return f"select {column} as message_id from {table}"  # noqa: S608 - the user's own query in the user's own database


# --- what is shown -----------------------------------------------------------------------------------------------


def _show(summary: ReconcileSummary, as_json: bool) -> None:
    import msgspec

    if as_json:
        data = msgspec.to_builtins(summary)
        print_json({"verdict": summary.verdict, "damage": summary.damage, "unfinished": summary.unfinished, **data})
        return
    print_table(["compared", "how many#"], summary.counts.items())
    typer.echo("")
    print_table(["side", "comparable since", "because"], [_reach(one) for one in summary.reach])
    typer.echo("")
    if summary.examples:
        print_table(["kind", "gid or message", "age", "group", "explanation"], [_row(one) for one in summary.examples])
        typer.echo("")
    print_table(["found", "how many#"], summary.found.items())
    for text in summary.notes:
        typer.echo(f"note: {text}")
    if summary.output:
        typer.echo(f"findings: {summary.output}")
    typer.echo(f"\n{verdict_text(summary)}")


def verdict_text(summary: ReconcileSummary) -> str:
    """One line, the last that is printed."""
    if summary.verdict == "damaged":
        return f"DAMAGED: {summary.damage:,} findings ({summary.unfinished:,} more in doubt or waiting)"
    if summary.verdict == "clean so far":
        return f"clean so far: all that is settled agrees; {summary.unfinished:,} in doubt or waiting"
    flying = summary.counts.get("in flight", 0)
    return "clean" + (f"; {flying:,} under way, younger than the grace" if flying else "")


def _reach(one: Any) -> list[str]:
    return [one.side, when(one.since_ms) or "the beginning", one.why]


def _row(one: Any) -> list[str]:
    age = "" if one.age_ms is None else span(max(0, one.age_ms) / 1000)
    return [one.kind, one.message_id or one.gid, age, one.group or "", one.explanation]
