"""The job: read, compute, write the figures, draw the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.core.errors import NotFound
from tallystick.core.names import DEAD_LETTERS
from tallystick.core.wire import TopicView
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.command_lines import check_command_lines
from tallystick.spark.jobs.report import figures as of
from tallystick.spark.jobs.report.facts import Facts, ReportedBroker
from tallystick.spark.jobs.report.missing import COLUMNS, missing_messages
from tallystick.spark.jobs.report.page import draw
from tallystick.spark.jobs.report.page.words import many
from tallystick.spark.jobs.report.settings import ReportSettings, ReportSummary, Span, span_of
from tallystick.spark.options import credential_options
from tallystick.spark.permissions import permissions_at
from tallystick.spark.tasks import Report, quiet, told_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE, FIGURES = "report.html", "figures"
PATIENCE_SECONDS = 30.0
VOLUME_COLUMNS = "topic string not null, value binary not null, timestamp timestamp not null"
ALL_BUT_LETTERS = r"(?!dlq\.).*"
LETTER_COLUMNS = "topic string not null, headers map<string,string>, timestamp timestamp not null"


def run_report(spark: SparkSession, settings: ReportSettings, report: Report = quiet) -> ReportSummary:
    """Write the report of a range into a directory: `report.html`, and one Parquet file for each figure."""
    check_command_lines(settings.credentials)
    with BrokersLink(settings.url, patience=PATIENCE_SECONDS, named="url", credentials=settings.credentials) as broker:
        reported, now_ms = _reported(broker, settings)
    span = span_of(settings, now_ms)
    report(f"counting the messages of {many(len(reported.topics), 'topic')}")
    tables = _of_messages(spark, settings, span, reported.has_letters)
    report("counting transactions and their outcomes")
    tables |= {**_of_transactions(spark, settings, span), **_of_groups(spark, settings)}
    # After the messages were counted: what was trimmed meanwhile is missing as well.
    tables["missing"] = _missing(settings, span, reported)
    report("writing the figures and the page")
    return _written(
        Facts(reported, span, {name: table.to_pylist() for name, table in tables.items()}), tables, settings
    )


def _reported(broker: BrokersLink, settings: ReportSettings) -> tuple[ReportedBroker, int]:
    info = broker.get("info")
    names = [view["name"] for view in broker.get("topics")["topics"]]
    missing = sorted(set(settings.topics) - set(names))
    if missing:
        raise NotFound(f"the broker at {settings.url} has no topic {', '.join(missing)}", field="topics")
    wanted = settings.topics or tuple(name for name in names if not _letters(name))
    reported = ReportedBroker(
        url=settings.url,
        store=broker.identity,
        version=info["version"],
        outcomes_kept_ms=info["dedup_retention_ms"],
        topics=wanted,
        has_letters=any(map(_letters, names)),
        hidden=permissions_at(broker).hidden(settings.topics),
    )
    return reported, info["now_ms"]


def _missing(settings: ReportSettings, span: Span, reported: ReportedBroker) -> Any:
    import pyarrow as pa

    with BrokersLink(settings.url, patience=PATIENCE_SECONDS, named="url", credentials=settings.credentials) as broker:
        views = msgspec.convert(broker.get("topics")["topics"], list[TopicView])
        counted = [view for view in views if _counts(settings, reported, view.name)]
        rows = missing_messages(broker, counted, settings.archive or "", span)
    text, number = pa.string(), pa.int64()
    return pa.Table.from_pylist(rows, pa.schema([(name, text if name == "topic" else number) for name in COLUMNS]))


def _counts(settings: ReportSettings, reported: ReportedBroker, topic: str) -> bool:
    """Whether the report counts the messages of a topic, or its dead letters."""
    return topic in reported.topics or (_letters(topic) and not settings.topics)


def _letters(topic: str) -> bool:
    return topic.startswith(DEAD_LETTERS)


# --- reading and computing ---------------------------------------------------------------------------------------


def _of_messages(spark: SparkSession, settings: ReportSettings, span: Span, has_letters: bool) -> dict[str, Any]:
    # A dead letter is a copy of a message that is counted already, where it came from; it is counted as a letter.
    chosen = {"subscribe": ",".join(settings.topics)} if settings.topics else {"subscribePattern": ALL_BUT_LETTERS}
    messages = _messages(spark, settings, span, chosen, VOLUME_COLUMNS)
    if has_letters:
        letters = _messages(spark, settings, span, {"subscribePattern": r"dlq\..*"}, LETTER_COLUMNS)
    else:
        letters = spark.createDataFrame([], LETTER_COLUMNS)
    if settings.topics:
        letters = letters.where(letters["headers"]["dead-topic"].isin(*settings.topics))
    with _kept(letters) as once:
        return _computed(
            volume=of.volume(messages, span),
            dead_letters=of.dead_letters(once, span),
            dead_letter_reasons=of.dead_letter_reasons(once, span),
        )


def _messages(
    spark: SparkSession, settings: ReportSettings, span: Span, chosen: Mapping[str, str], columns: str
) -> DataFrame:
    options = {
        **chosen,
        "startingTimestamp": str(span.since_ms),
        "endingTimestamp": str(span.until_ms),
        "archive": settings.archive or "",
        # Retention may take messages away while they are read: the page says so, and that is no reason to fail.
        "failOnDataLoss": "false",
        **credential_options(settings.credentials),
    }
    return spark.read.format("tallystick").schema(columns).options(url=settings.url, **options).load()


def _of_transactions(spark: SparkSession, settings: ReportSettings, span: Span) -> dict[str, Any]:
    with _kept(of.concerned(_table(spark, settings, "transactions"), span)) as transactions:
        resolved = of.resolved(transactions, span)
        return _computed(
            outcomes=of.outcomes(resolved),
            outcomes_over_time=of.outcomes_over_time(resolved, span),
            time_to_outcome=of.time_to_outcome(resolved),
            time_to_outcome_histogram=of.time_to_outcome_histogram(resolved),
            checks=of.checks(resolved),
            pending=of.pending(transactions, span),
            pending_reasons=of.pending_reasons(transactions, span),
        )


def _of_groups(spark: SparkSession, settings: ReportSettings) -> dict[str, Any]:
    offsets = _table(spark, settings, "offsets")
    if settings.topics:
        offsets = offsets.where(offsets["topic"].isin(*settings.topics))
    return _computed(lag=of.lag(offsets))


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Rows that several figures are made of are fetched once; so all of them tell of the same moment."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _table(spark: SparkSession, settings: ReportSettings, table: str) -> DataFrame:
    options = {"url": settings.url, "table": table, **credential_options(settings.credentials)}
    return spark.read.format("tallystick").options(**options).load()


def _computed(**figures: DataFrame) -> dict[str, Any]:
    """The figures as Arrow tables; all of them are small."""
    with told_by_tasks():
        return {name: _utc(frame.toArrow()) for name, frame in figures.items()}


def _utc(table: Any) -> Any:
    """Times say that they are UTC, whatever the session's time zone is; the moments are the same."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


# --- writing -----------------------------------------------------------------------------------------------------


def _written(facts: Facts, tables: Mapping[str, Any], settings: ReportSettings) -> ReportSummary:
    from pyarrow import parquet

    output = Path(settings.output).absolute()  # Spark's processes may have another working directory
    (output / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        parquet.write_table(table, output / FIGURES / f"{name}.parquet")
    (output / PAGE).write_text(draw(facts), encoding="utf-8")
    return _summary(facts, output)


def _summary(facts: Facts, output: Path) -> ReportSummary:
    total, times = facts.total, facts.overall
    return ReportSummary(
        page=str(output / PAGE),
        figures=str(output / FIGURES),
        since_ms=facts.span.since_ms,
        until_ms=facts.span.until_ms,
        topics=len({row["topic"] for row in facts.figures["volume"]}),
        messages=total("volume", "messages"),
        missing=total("missing", "messages"),
        hidden=facts.broker.hidden,
        bytes=total("volume", "bytes"),
        committed=total("outcomes", "transactions", outcome="committed"),
        rolled_back=total("outcomes", "transactions", outcome="rolled_back"),
        p50_ms=times.get("p50_ms"),
        p95_ms=times.get("p95_ms"),
        p99_ms=times.get("p99_ms"),
        pending=total("pending", "transactions", state="prepared"),
        parked=total("pending", "transactions", state="parked"),
        dead_letters=total("dead_letters", "letters"),
        lag=total("lag", "lag"),
    )
