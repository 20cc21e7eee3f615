"""The report's figures, computed by Spark: a made history has exactly the expected numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from report_support import HOUR, MINUTE, NAMES, SPAN, T0, TRANSACTION_COLUMNS, time, transactions
from shipping_support import page_program

from brokers import BrokerProcess, running_broker
from tallystick.cli import main
from tallystick.cli.times import moment
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.link import Link
from tallystick.spark.jobs.report import ReportSettings, ReportSummary, figures, run_report

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> Iterator[DataFrame]:
    kept = figures.concerned(spark.createDataFrame(transactions(), TRANSACTION_COLUMNS), SPAN).persist()
    yield kept
    kept.unpersist()


@pytest.fixture(scope="module")
def resolved(history: DataFrame) -> DataFrame:
    return figures.resolved(history, SPAN)


def test_volume_by_topic_and_step(spark: SparkSession) -> None:
    stored = [
        ("a", b"12345", time(-1)),
        *(("a", b"123", time(moment)) for moment in (0, 59_999)),
        ("a", b"", time(MINUTE)),
        ("b", "é".encode(), time(HOUR - 1)),
        ("b", b"12345", time(HOUR)),
    ]
    frame = spark.createDataFrame(stored, "topic string, value binary, timestamp timestamp")
    found = figures.volume(frame, SPAN).selectExpr("unix_millis(step)", "topic", "messages", "bytes")
    assert SPAN.step_ms == MINUTE
    assert rows(found) == [(T0, "a", 2, 6), (T0 + MINUTE, "a", 1, 0), (T0 + HOUR - MINUTE, "b", 1, 2)]


def test_dead_letters_by_group_and_origin(spark: SparkSession) -> None:
    def letter(group: str, attempts: str, reason: str | None, at: int = 0) -> tuple[Any, ...]:
        headers = {"dead-topic": "orders", "dead-attempts": attempts}
        return f"dlq.{group}", headers | ({"dead-reason": reason} if reason else {}), time(at)

    letters = [
        letter("mail", "3", "<b>no</b>", 5),
        letter("mail", "5", "<b>no</b>"),
        letter("mail", "not a number", None),
        letter("search", "1", "x"),
        letter("search", "1", "x", HOUR),
        ("orders", {"dead-topic": "no letter"}, time(0)),
    ]
    frame = spark.createDataFrame(letters, "topic string, headers map<string,string>, timestamp timestamp")
    counted = figures.dead_letters(frame, SPAN).selectExpr("* except (last_at)", "unix_millis(last_at)")
    assert rows(counted) == [("mail", "orders", 3, 8, 5, T0 + 5), ("search", "orders", 1, 1, 1, T0)]
    reasons = figures.dead_letter_reasons(frame, SPAN)
    assert rows(reasons) == [("mail", "<b>no</b>", 2), ("mail", None, 1), ("search", "x", 1)]


def test_outcomes_by_group_and_by_whom(resolved: DataFrame) -> None:
    assert rows(figures.outcomes(resolved)) == [
        ("", "committed", "sender", 1, 2),
        ("", "rolled_back", "producer", 1, 2),
        ("bank", "committed", "operator", 1, 2),
        ("bank", "rolled_back", "exhausted", 1, 2),
        ("edge", "committed", "producer", 1, 2),
        ("enrich", "committed", "ledger", 1, 2),
        ("shop", "committed", "check", 1, 2),
        ("shop", "committed", "producer", 3, 6),
        ("shop", "rolled_back", "producer", 1, 2),
    ]


def test_outcomes_by_time(resolved: DataFrame) -> None:
    found = figures.outcomes_over_time(resolved, SPAN).selectExpr("unix_millis(step)", "outcome", "by", "transactions")
    assert [((at - T0) // MINUTE, *others) for at, *others in rows(found)] == [
        (0, "committed", "producer", 1),
        (1, "committed", "ledger", 1),
        (1, "committed", "producer", 3),
        (1, "committed", "sender", 1),
        (1, "rolled_back", "producer", 1),
        (30, "committed", "operator", 1),
        (30, "rolled_back", "producer", 1),
        (40, "rolled_back", "exhausted", 1),
        (59, "committed", "check", 1),
    ]


def test_time_to_outcome_leaves_out_what_was_never_prepared(resolved: DataFrame) -> None:
    found = {row[0]: row[1:] for row in rows(figures.time_to_outcome(resolved))}
    assert set(found) == {None, "bank", "edge", "shop"}
    # shop took 1, 2, 3, 4 and 30,000 ms; percentiles lie between two of them in proportion.
    assert found["shop"] == (5, 3.0, pytest.approx(24_000.8), pytest.approx(28_800.16), 30_000)
    assert found["bank"] == (2, 300_050.0, pytest.approx(570_005.0), pytest.approx(594_001.0), 600_000)
    assert found["edge"] == (1, 10.0, 10.0, 10.0, 10)
    assert found[None][:2] == (8, 7.0)  # 1, 2, 3, 4, 10, 100, 30,000 and 600,000 ms


def test_time_to_outcome_by_class(resolved: DataFrame) -> None:
    assert rows(figures.time_to_outcome_histogram(resolved)) == [
        (0, 1, "committed", 1),
        (1, 2, "committed", 1),
        (2, 5, "committed", 1),
        (2, 5, "rolled_back", 1),
        (5, 10, "committed", 1),
        (50, 100, "committed", 1),
        (10_000, 30_000, "committed", 1),
        (300_000, 1_800_000, "rolled_back", 1),
    ]


def test_checks_before_the_outcome(resolved: DataFrame) -> None:
    assert rows(figures.checks(resolved)) == [
        (0, "committed", 4),
        (0, "rolled_back", 1),
        (1, "committed", 1),
        (2, "committed", 1),
        (15, "rolled_back", 1),
    ]


def test_pending_by_age_as_the_broker_counts_it(history: DataFrame) -> None:
    found = figures.pending(history, SPAN).selectExpr("* except (oldest_at)", "unix_millis(oldest_at)")
    hours = 6 * HOUR
    assert rows(found) == [
        ("bank", "parked", HOUR, hours, 1, 3, 15, T0),
        ("bank", "parked", 24 * HOUR, None, 1, 3, 15, T0 - 48 * HOUR),
        ("shop", "prepared", HOUR, hours, 2, 6, 1, T0 + HOUR - 6_000),
    ]
    assert rows(figures.pending_reasons(history, SPAN)) == [("parked", "status 404", 2), ("prepared", "no answer", 1)]


def test_a_history_of_nothing_has_no_figures(history: DataFrame) -> None:
    nothing = history.where("false")
    resolved = figures.resolved(nothing, SPAN)
    for frame in (figures.time_to_outcome(resolved), figures.outcomes(resolved), figures.pending(nothing, SPAN)):
        assert rows(frame) == []


# --- with a broker -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """3 committed, 1 rolled back, 1 waits; 5 sent (`mail` settled one and gave one up); 3 of 4 were trimmed."""
    with running_broker(check_after="1h") as started, Link(started.url) as link:
        for number in range(5):
            messages = [{"topic": "orders", "value": "12345"}]
            link.post("transactions", gid=f"t{number}", group="shop", messages=messages)
        for number in range(3):
            link.post("transactions", f"t{number}", "commit")
        link.post("transactions", "t3", "rollback")
        link.put("topics", "mails", queues=1)
        link.post("messages", messages=[{"topic": "mails", "value": "1234567890"}] * 5)
        _settle(link)
        link.put("topics", "trimmed", queues=1)
        link.post("messages", messages=[{"topic": "trimmed", "value": "x"}] * 4)
        link.post("topics", "trimmed", "trim", offsets={"0": 3})
        yield started


def _settle(link: Link) -> None:
    first, second = link.post("groups", "mail", "receive", topic="mails", max=2)["deliveries"]
    link.post("groups", "mail", "ack", receipts=[first["receipt"]])
    link.post("groups", "mail", "nack", receipts=[second["receipt"]], dead=True, reason="<script>no</script>")


def made(spark: SparkSession, broker: BrokerProcess, output: Path, **settings: Any) -> ReportSummary:
    return run_report(spark, ReportSettings(url=broker.url, output=str(output), **settings))


def test_a_report_of_a_broker(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    told: list[str] = []
    summary = run_report(spark, ReportSettings(url=broker.url, output=str(tmp_path / "new" / "dir")), told.append)
    assert (summary.topics, summary.messages, summary.bytes) == (3, 9, 3 * 5 + 5 * 10 + 1)
    assert (summary.committed, summary.rolled_back, summary.pending, summary.parked) == (3, 1, 1, 0)
    assert (summary.dead_letters, summary.lag, summary.missing) == (1, 3, 3)
    assert summary.p50_ms is not None
    assert len(told) > 1
    page = Path(summary.page).read_text()
    assert "&lt;script&gt;no&lt;/script&gt;" in page
    assert "<script" not in page
    assert "Topic trimmed: up to 3 messages of this range were trimmed and are not counted." in page
    written = {path.stem: parquet.read_table(path) for path in Path(summary.figures).glob("*.parquet")}
    assert set(written) == set(NAMES)
    assert sum(written["volume"]["messages"].to_pylist()) == 9
    assert "dlq.mail" not in written["volume"]["topic"].to_pylist()
    assert sum(written["dead_letters"]["letters"].to_pylist()) == 1
    assert str(written["volume"].schema.field("step").type) == "timestamp[us, tz=UTC]"
    assert spark.read.parquet(f"{summary.figures}/lag.parquet").selectExpr("sum(lag)").first()[0] == 3


@pytest.mark.full
def test_a_range_in_which_nothing_was(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    long_ago = made(spark, broker, tmp_path, since_ms=T0 - 10 * 365 * 24 * HOUR, until_ms=T0 - 9 * 365 * 24 * HOUR)
    assert (long_ago.messages, long_ago.committed, long_ago.pending, long_ago.p50_ms) == (0, 0, 0, None)
    assert long_ago.lag == 3  # as it is now
    assert "No message was stored in this range." in Path(long_ago.page).read_text()


@pytest.mark.full
def test_wrong_ranges_and_topics_are_refused(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="begin before it ends"):
        made(spark, broker, tmp_path, since_ms=T0, until_ms=T0)
    with pytest.raises(NotFound, match="no topic nowhere"):
        made(spark, broker, tmp_path, topics=("nowhere",))
    assert not list(tmp_path.iterdir())


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_command_reports_on_one_topic_and_says_where(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            ["spark", "report", "--url", broker.url, "-o", str(tmp_path), "--since", "1h", "--topic", "mails", "--json"]
        )
    assert ended.value.code == 0
    summary = msgspec.json.decode(capsys.readouterr().out, type=ReportSummary)
    assert (summary.topics, summary.messages, summary.lag, summary.dead_letters) == (1, 5, 3, 1)
    assert summary.until_ms - summary.since_ms == pytest.approx(HOUR, abs=60_000)
    assert Path(summary.page).is_file()


@pytest.mark.full
def test_the_program_of_the_page_runs(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = page_program("docs/how-to/spark-report.md", "daily_report.py")
    exec(compile(program.replace("http://127.0.0.1:7440", broker.url), "daily_report.py", "exec"), {})
    assert (tmp_path / "last-day" / "report.html").is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", T0 - 90 * MINUTE),
        ("2027-01-15", T0 - 8 * HOUR),
        ("2027-01-15T08:00:01.5", T0 + 1_500),
        ("2027-01-15 10:00+02:00", T0),
    ],
)
def test_times_as_people_write_them(text: str, expected: int) -> None:
    assert moment(text, "--since", T0) == expected


def test_what_is_no_time_is_refused_by_the_options_name() -> None:
    with pytest.raises(InvalidRequest, match="--until: 'tomorrow' is not a time such as"):
        moment("tomorrow", "--until", T0)
