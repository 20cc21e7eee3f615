"""The broker's tables as DataFrames: all rows, each once, over pages, splits and a broker that comes and goes."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType
from stream_runs import run_to_end

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.errors import BrokerUnavailable, InvalidRequest, NotFound
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import AnswerChecks, Check, Commit, CommitOffsets, Prepare, Rollback
from tallystick.link import Link
from tallystick.spark import tables
from tallystick.spark.tables import TABLES, TableReader, columns_of

PAGE = Path(__file__).parents[2] / "docs/reference/spark-tables.md"
PENDING = 60
PER_OUTCOME = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1h", default_queues=1) as running:
        with RawClient(running.url) as client:
            _fill(client)
        yield running


def _fill(client: RawClient) -> None:
    """Transactions in every state, of two groups; two messages in each."""
    for group, count in (("shop", PENDING), ("bank", PENDING)):
        client.batch(*(_prepared(f"{group}-{number}", group) for number in range(count)))
    ended = [f"shop-{number}" for number in range(2 * PER_OUTCOME)]
    client.batch(*(Commit(gid) for gid in ended[:PER_OUTCOME]), *(Rollback(gid) for gid in ended[PER_OUTCOME:]))
    # With one check allowed, an answer that is none parks the transaction.
    client.do(AnswerChecks({"bank-0": "unknown"}, {"bank-0": "cannot tell"}))
    client.do(CommitOffsets("readers", "orders", {0: 3}))


def _prepared(gid: str, group: str) -> Prepare:
    messages = [OutgoingMessage("orders", f"{gid}-{n}".encode(), f"k{n}", {"n": str(n)}) for n in range(2)]
    return Prepare(gid, group, messages, Check(source=f"sqlite:/{group}.db", max_checks=1))


def table(broker: BrokerProcess, name: str, **options: str) -> TableReader:
    return TableReader({"url": broker.url, "table": name, **options}, columns_of(name))


def rows_of(reader: TableReader) -> list[dict[str, Any]]:
    """All partitions, as Spark would read them."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def states(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["state"] for row in rows)


# --- without Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 7, 20_000])
def test_every_transaction_comes_once_whatever_the_pages(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", page)
    for partitions in ("1", "5"):
        gids = Counter(row["gid"] for row in rows_of(table(broker, "transactions", minPartitions=partitions)))
        assert gids == Counter(f"{group}-{number}" for group in ("shop", "bank") for number in range(PENDING))


def test_state_group_and_age_are_chosen_by_the_broker(broker: BrokerProcess) -> None:
    def chosen(**options: str) -> Counter[str]:
        return states(rows_of(table(broker, "transactions", **options)))

    rest = PENDING - 2 * PER_OUTCOME
    assert chosen(group="shop") == {"prepared": rest, "committed": PER_OUTCOME, "rolled_back": PER_OUTCOME}
    assert chosen(state="pending", group="bank") == {"prepared": PENDING - 1, "parked": 1}
    assert chosen(state="parked") == {"parked": 1}
    assert chosen(state="committed") == {"committed": PER_OUTCOME}
    assert chosen(olderThan="1h") == {}
    assert chosen(state="prepared", olderThan="0s", group="shop") == {"prepared": rest}


def test_a_transaction_is_shown_with_all_that_is_known_of_it(broker: BrokerProcess) -> None:
    (parked,) = rows_of(table(broker, "transactions", state="parked"))
    assert parked["last_error"] == "cannot tell"
    assert (parked["gid"], parked["group"], parked["messages"], parked["checks"]) == ("bank-0", "bank", 2, 1)
    assert (parked["check_via"], parked["source"], parked["resolved_at"]) == ("group", "sqlite:/bank.db", None)
    committed = rows_of(table(broker, "transactions", state="committed"))
    assert {row["resolved_by"] for row in committed} == {"producer"}
    assert all(row["resolved_at"] >= row["created_at"] for row in committed)


def test_half_messages_are_those_of_pending_transactions(broker: BrokerProcess) -> None:
    rows = rows_of(table(broker, "half", group="shop"))
    pending = [f"shop-{number}" for number in range(2 * PER_OUTCOME, PENDING)]
    assert Counter(row["value"].decode() for row in rows) == Counter(f"{gid}-{n}" for gid in pending for n in range(2))
    assert all(dict(row["headers"]) == {"n": row["key"][1:]} and row["topic"] == "orders" for row in rows)


def test_outcomes_come_in_the_order_in_which_they_became_durable(broker: BrokerProcess) -> None:
    rows = rows_of(table(broker, "op", minPartitions="1"))
    assert [(row["sequence"], row["index"]) for row in rows] == sorted((row["sequence"], row["index"]) for row in rows)
    assert Counter(row["outcome"] for row in rows) == {"committed": PER_OUTCOME, "rolled_back": PER_OUTCOME}


def test_offsets_show_how_far_a_group_is(broker: BrokerProcess) -> None:
    end = 2 * PER_OUTCOME
    place = {"group": "readers", "topic": "orders", "queue": 0, "offset": 3, "start": 0, "end": end, "lag": end - 3}
    assert rows_of(table(broker, "offsets", group="readers")) == [{**place, "leased": 0}]
    with pytest.raises(NotFound, match="nobody"):
        rows_of(table(broker, "offsets", group="nobody"))


@pytest.mark.parametrize("name", TABLES)
def test_the_columns_are_those_that_the_broker_sends(broker: BrokerProcess, name: str) -> None:
    with Link(broker.url) as link, link.arrow("tables", name) as answer, pa.ipc.open_stream(answer.read()) as stream:
        sent = stream.schema
    ours = to_arrow_schema(columns_of(name), timezone="UTC")
    assert [(field.name, field.nullable) for field in sent] == [(field.name, field.nullable) for field in ours]
    times = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
    assert [field.type for field in ours] == [times[1] if f.type == times[0] else f.type for f in sent]


def test_chosen_columns_come_in_the_chosen_order(broker: BrokerProcess) -> None:
    columns = columns_of("transactions")
    schema = StructType([columns["state"], columns["gid"]])
    reader = TableReader({"url": broker.url, "table": "transactions", "state": "parked"}, schema)
    assert rows_of(reader) == [{"state": "parked", "gid": "bank-0"}]
    wrong = StructType([StructField("topic", StringType())])
    with pytest.raises(InvalidRequest, match="table 'op' has no column topic string"):
        TableReader({"url": broker.url, "table": "op"}, wrong)


def test_a_broker_that_is_killed_between_pages_costs_no_row_and_doubles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", 10)
    with running_broker(check_after="1h") as broker:
        with RawClient(broker.url) as client:
            client.batch(*(_prepared(f"shop-{number}", "shop") for number in range(PENDING)))
        reader = table(broker, "transactions", state="pending", minPartitions="2")
        gids: list[str] = []
        for part in reader.partitions():
            for batch in reader.read(part):
                gids += batch.column("gid").to_pylist()
                if len(gids) in (10, 50):
                    broker.kill()
                    broker.start()
    assert Counter(gids) == Counter(f"shop-{number}" for number in range(PENDING))


def test_a_page_that_breaks_off_is_asked_for_again(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost in the middle of every second answer, or the answer is cut without anybody noticing."""
    monkeypatch.setattr(tables, "PAGE_ROWS", 25)
    monkeypatch.setattr(tables, "_PAUSE_SECONDS", 0.0)
    real, calls = http.client.HTTPResponse.read, Counter[str]()

    def read(self: http.client.HTTPResponse, *amount: int) -> bytes:
        content = real(self, *amount)
        if self.getheader("Content-Type") != "application/vnd.apache.arrow.stream":
            return content
        calls["pages"] += 1
        if calls["pages"] % 4 == 1:
            raise http.client.IncompleteRead(content[:100])
        return content[:-200] if calls["pages"] % 4 == 3 else content

    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    gids = Counter(row["gid"] for row in rows_of(table(broker, "transactions", state="pending")))
    assert set(gids.values()) == {1}
    assert len(gids) == 2 * PENDING - 2 * PER_OUTCOME
    assert calls["pages"] > 8


def test_a_broker_that_stays_away_is_an_error() -> None:
    with running_broker() as gone:
        pass
    with pytest.raises(BrokerUnavailable, match="option 'url'"):
        table(gone, "op", retryTimeout="0s").partitions()


def test_a_table_without_partitions_has_no_rows(broker: BrokerProcess) -> None:
    assert list(table(broker, "op").read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"table": "queues"},
            "there is no table 'queues'; the tables are transactions, half, op, offsets, delayed, calls, audit",
        ),
        ({"table": "transactions", "state": "done"}, "'done' is not one of 'prepared', 'parked', 'pending'"),
        ({"table": "half", "state": "committed"}, "'committed' is not one of"),
        ({"table": "op", "state": "committed"}, "option 'state': table 'op' has no such option"),
        ({"table": "offsets", "olderThan": "1m"}, "option 'olderthan': table 'offsets' has no such option"),
        ({"table": "transactions", "olderThan": "long"}, "'long' is not a duration"),
        ({"table": "transactions", "group": "no group"}, "group"),
        ({"table": "transactions", "minPartitions": "0"}, "minPartitions"),
        ({"table": "transactions", "stat": "parked"}, "did you mean 'state'"),
        ({"table": "transactions", "url": "http://a,ftp://b"}, "option 'url'"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        TableReader({"url": "http://127.0.0.1:7440", **options}, columns_of("op"))


# --- with Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.spark
def test_the_examples_of_the_documentation_run(spark: SparkSession, broker: BrokerProcess) -> None:
    examples = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown: dict[int, list[Any]] = {}
    for number, example in enumerate(examples):
        shown[number] = spark.sql(example.replace("http://127.0.0.1:7440", broker.url)).collect()
    assert len(examples) > 8
    stuck = {(row.group, row.state, row.last_error): row.transactions for row in shown[1]}
    assert stuck[("bank", "parked", "cannot tell")] == 1
    assert stuck[("shop", "prepared", None)] == PENDING - 2 * PER_OUTCOME
    assert {(row.source, row.pending) for row in shown[3]} == {("sqlite:/bank.db", 60), ("sqlite:/shop.db", 20)}
    assert [(row.topic, row.messages) for row in shown[5]] == [("orders", 160)]
    assert [row.behind for row in shown[9]] == [2 * PER_OUTCOME - 3]
    for name in TABLES:
        spark.catalog.dropTempView(name)


@pytest.mark.spark
def test_a_table_is_no_stream_and_a_wrong_option_is_told_at_load(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(AnalysisException, match="there is no table"):
        spark.read.format("tallystick").option("url", broker.url).option("table", "queues").load()
    stream = spark.readStream.format("tallystick").option("url", broker.url).option("table", "op").load()
    with pytest.raises(Exception, match="is no stream"):
        run_to_end(stream.writeStream.format("noop").trigger(availableNow=True).start)
