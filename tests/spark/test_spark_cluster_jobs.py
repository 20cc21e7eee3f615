"""Each table and each job of Spark's over a cluster of two brokers and several stores: as over one broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archive_support import archived_rows, fill, rows_of, settings
from checkback_support import Producer
from checkback_support import settings as checkback_settings

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from eventually import eventually
from raw_client import RawClient
from servers import Server
from service_database import Service
from shared_stores import url_of
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Commit, CommitOffsets, Prepare, Rollback
from tallystick.spark.jobs.archive import run_archive
from tallystick.spark.jobs.checkback import run_checkback
from tallystick.spark.jobs.replay import ReplaySettings, run_replay
from tallystick.spark.jobs.report import ReportSettings, run_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.full]
STORES = 3
EACH = 24  # transactions of each outcome: enough for all stores to have some
NOWHERE = "http://127.0.0.1:9/"


@pytest.fixture(scope="module")
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    url = url_of(postgres, postgres.new_database())
    with running_cluster(url, brokers=2, stores=STORES, check_after="1h", default_queues=2) as made:
        with RawClient(made.brokers[0].url) as client:
            begin(client)
        yield made


def begin(client: RawClient) -> None:
    """Transactions of each outcome, with a message and a call that nobody takes, and an offset in every queue."""
    once = CallPolicy(concurrent=True, max_attempts=1)
    for outcome in ("committed", "rolled", "pending"):
        client.batch(*(prepared(gid, once) for gid in gids(outcome)))
    client.batch(*(Commit(gid) for gid in gids("committed")), *(Rollback(gid) for gid in gids("rolled")))
    queues = range(len(client.json("GET", "/v1/topics/ledger").json()["ends"]))
    client.do(CommitOffsets("readers", "ledger", dict.fromkeys(queues, 1)))


def prepared(gid: str, once: CallPolicy) -> Prepare:
    message, call = OutgoingMessage("ledger", gid.encode(), gid), OutgoingCall(NOWHERE, b"{}")
    return Prepare(gid, "desk", [message], Check(after_ms=3_600_000), calls=[call], call_options=once)


def gids(outcome: str) -> list[str]:
    return [f"{outcome}-{number}" for number in range(EACH)]


@pytest.fixture(params=["one", "both"])
def urls(cluster: BrokerCluster, request: pytest.FixtureRequest) -> str:
    """As a job is given them."""
    return cluster.brokers[1].url if request.param == "one" else cluster.urls


@pytest.fixture
def broker(cluster: BrokerCluster) -> BrokerProcess:
    return cluster.brokers[0]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.url) as made:
        yield made


# --- tables ----------------------------------------------------------------------------------------------------------


def table(spark: SparkSession, urls: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("tallystick").options(url=urls, table=name, **options).load()


def of_desk(frame: DataFrame) -> DataFrame:
    return frame.where("`group` = 'desk'")


def test_the_table_of_transactions_has_those_of_all_stores(spark: SparkSession, urls: str) -> None:
    rows = of_desk(table(spark, urls, "transactions")).select("gid", "state").collect()
    expected = {"committed": "committed", "rolled": "rolled_back", "pending": "prepared"}
    assert Counter((row.gid, row.state) for row in rows) == Counter(
        (gid, state) for name, state in expected.items() for gid in gids(name)
    )


def test_the_tables_of_halves_and_outcomes_divide_them(spark: SparkSession, urls: str) -> None:
    half = of_desk(table(spark, urls, "half")).select("gid").collect()
    assert Counter(row.gid for row in half) == Counter(gids("pending"))
    op = table(spark, urls, "op").select("gid").collect()
    found = Counter(row.gid for row in op if row.gid.startswith(("committed-", "rolled-", "pending-")))
    assert found == Counter(gids("committed") + gids("rolled"))


def test_the_table_of_calls_has_those_of_all_stores(spark: SparkSession, urls: str, client: RawClient) -> None:
    eventually(lambda: client.json("GET", "/v1/info").json()["calls_parked"] == EACH, "calls that are given up")
    rows = table(spark, urls, "calls").select("gid", "state").collect()
    found = Counter(row.gid for row in rows if row.gid.startswith("committed-"))
    assert found == Counter(gids("committed"))


def test_the_table_of_offsets_has_every_queue_of_the_cluster(spark: SparkSession, urls: str, client: RawClient) -> None:
    ends = client.json("GET", "/v1/topics/ledger").json()["ends"]
    rows = table(spark, urls, "offsets").where("`group` = 'readers'").collect()
    found = {row["queue"]: row["offset"] for row in rows}
    assert len(rows) == len(ends)
    assert found == dict.fromkeys(range(len(ends)), 1)


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_checkback_decides_what_is_pending_in_every_store(
    spark: SparkSession, cluster: BrokerCluster, client: RawClient, postgres: Server
) -> None:
    producer = Producer(Service(postgres), client, "shop")
    producer.commit(30)
    producer.roll_back(10)
    producer.never_begin(10)
    summary = run_checkback(spark, checkback_settings(cluster.brokers[1], producer, url=cluster.urls))
    assert producer.contradictions() == set()
    assert (summary.pending, summary.committed, summary.rolled_back) == (50, 30, 20)


def test_what_is_archived_of_all_stores_is_replayed_whole(
    spark: SparkSession, cluster: BrokerCluster, client: RawClient, tmp_path: Path
) -> None:
    client.json("PUT", "/v1/topics/old", {"queues": 2})
    for first in range(0, 600, 50):  # each goes to another store
        fill(client, "old", 50, first)
    held = list(client.messages("old"))
    assert {message.queue % STORES for message in held} == set(range(STORES)), "every store has some"
    summary = run_archive(spark, settings(cluster.urls, tmp_path, "old"), lambda _: None)
    assert archived_rows(tmp_path, "old") == rows_of(held)
    assert (len(held), summary.missing) == (600, 0)
    ends = dict(enumerate(client.json("GET", "/v1/topics/old").json()["ends"]))
    given = ReplaySettings(url=cluster.urls, topic="old", to="again", archive=str(tmp_path), to_offsets=ends)
    for _ in range(2):  # once, however often it is said
        run_replay(spark, given)
    assert contents(client.messages("again")) == contents(held)


def contents(messages: Any) -> Counter[Any]:
    return Counter((message.key, message.value, message.tag) for message in messages)


def test_a_report_counts_what_all_stores_have(
    spark: SparkSession, cluster: BrokerCluster, client: RawClient, tmp_path: Path
) -> None:
    ends = client.json("GET", "/v1/topics/ledger").json()["ends"]
    assert sum(ends) == EACH
    summary = run_report(spark, ReportSettings(url=cluster.urls, output=str(tmp_path), topics=("ledger",)))
    assert (summary.topics, summary.messages) == (1, EACH)
    assert summary.pending >= EACH
    assert summary.committed >= EACH
    assert summary.rolled_back >= EACH
    assert Path(summary.page).exists()
