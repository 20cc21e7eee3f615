"""Spark over brokers that share their stores: whichever of them is asked, and whichever is killed."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reconcile_ground import Service, transact
from stream_runs import begin

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.core.errors import BrokerUnavailable, InvalidRequest
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.core.placing import store_for
from tallystick.spark.brokers import BrokersLink, stores_behind
from tallystick.spark.jobs.reconcile import ReconcileSettings, run_reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgresql]
STORES = 3
Brokers = tuple[BrokerProcess, BrokerProcess]


@pytest.fixture
def cluster(postgres: Server, tmp_path: Path) -> Iterator[Brokers]:
    """Two brokers on one database, with three stores."""
    shared: dict[str, Any] = {
        "store": url_of(postgres, postgres.new_database()),
        "stores": STORES,
        "allow_weak_durability": True,
    }
    with (
        running_broker(tmp_path / "a", **shared) as first,
        running_broker(tmp_path / "b", **shared) as second,
    ):
        for broker in (first, second):
            eventually(lambda broker=broker: len(cluster_of(broker)["brokers"]) == 2, "brokers that know each other")
        yield first, second


def send(broker: BrokerProcess, topic: str, numbers: range) -> None:
    """Each by itself, so that they come to all stores."""
    with RawClient(broker.url) as raw:
        for number in numbers:
            raw.do(Send([OutgoingMessage(topic, str(number).encode(), key=f"k{number}")]))


# --- the way to the brokers ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_link_that_knows_one_broker_goes_on_at_another_when_that_one_is_killed(cluster: Brokers) -> None:
    first, second = cluster
    with BrokersLink(first.url, patience=60) as link:
        stores = link.stores
        assert len(stores) == STORES
        assert link.divided
        assert link.store_of_app("app") == store_for("app", stores)
        assert sorted(stores_behind(f"{second.url},{first.url}", 60)) == sorted(stores)
        link.put("topics", "orders", queues=2)
        first.kill()
        assert link.get("topics", "orders")["queues"] == 2 * STORES
        assert link.url == second.url
        assert link.stores == stores
    with BrokersLink(first.url) as impatient, pytest.raises(BrokerUnavailable):
        impatient.get("info")


def test_brokers_that_share_nothing_do_not_stand_in_for_each_other() -> None:
    with (
        running_broker(store="memory") as one,
        running_broker(store="memory") as other,
        BrokersLink(f"{one.url},{other.url}") as link,
        pytest.raises(InvalidRequest, match="is a broker of its own; several addresses are for brokers that share"),
    ):
        link.get("info")


# --- a pipeline, and its reconciliation ------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.timeout(500)
def test_source_sink_and_reconcile_outlast_the_brokers_that_are_killed_one_after_the_other(
    spark: SparkSession, cluster: Brokers, postgres: Server, tmp_path: Path
) -> None:
    first, second = cluster
    urls = f"{first.url},{second.url}"
    send(first, "in", range(100))
    with query(spark, urls, tmp_path / "checkpoint") as running:
        eventually(lambda: running.lastProgress, "a batch")
        first.kill()
        send(second, "in", range(100, 200))
        running.processAllAvailable()
        first.start()
        eventually(lambda: all(store["url"] for store in cluster_of(first)["stores"]), "an owner of each store")
        second.kill()
        send(first, "in", range(200, 300))
        running.processAllAvailable()
        assert running.exception() is None
    rows = spark.read.format("tallystick").options(url=urls, topic="out").load().collect()
    assert Counter(int(row["value"]) for row in rows) == Counter(range(300))
    assert len({row["queue"] % STORES for row in rows}) == 1, "batches of a query lie in one store"
    second.start()
    reconciled(spark, first, second, Service(postgres))


@contextlib.contextmanager
def query(spark: SparkSession, urls: str, checkpoint: Path) -> Iterator[Any]:
    """Copies topic `in` to topic `out`."""
    source = spark.readStream.format("tallystick").options(url=urls, topic="in", startingOffsets="earliest").load()
    rows = source.selectExpr("value", "key").writeStream.format("tallystick")
    chosen = rows.options(url=urls, topic="out", checkpointLocation=str(checkpoint))
    running = begin(chosen.start)
    try:
        yield running
    finally:
        running.stop()


def cluster_of(broker: BrokerProcess) -> Any:
    with RawClient(broker.url) as raw:
        return json.loads(raw.request("GET", "/v1/cluster", headers={"Accept": "application/json"}).body)


def reconciled(spark: SparkSession, first: BrokerProcess, second: BrokerProcess, shop: Service) -> None:
    """While the broker is killed that is named first."""
    with tallystick.Client(second.url, group="shop", database=shop.open) as client:
        gids = [transact(client, shop, "orders") for _ in range(20)]
    kills = iter([first.kill])
    settings = ReconcileSettings(
        brokers=(f"{first.url},{second.url}",),
        producers=(shop.url,),
        producer_groups=("shop",),
        topics=("orders",),
        grace_ms=0,
        examples=100,
    )
    summary = run_reconcile(spark, settings, lambda _: next(kills, lambda: None)())
    assert not first.running
    assert summary.examples == ()
    assert summary.verdict == "clean"
    assert summary.counts["producer committed"] == summary.counts["messages in log"] == len(gids)
