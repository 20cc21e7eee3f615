"""Reconciliation of values: what consumers have kept a digest of against what the log has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reconcile_ground import Service, transact

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from tallystick.core.errors import ConfigError, InvalidRequest
from tallystick.spark.jobs.reconcile import Consumer, ReconcileSettings, ReconcileSummary, run_reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="1h") as started:
        yield started


def consume(broker: BrokerProcess, service: Service, group: str, expected: int, **options: Any) -> None:
    with tallystick.Client(broker.url) as ts:
        ts.subscribe("orders", group=group, exactly_once=service.open, **options)(lambda message: None)
        ts.start()
        eventually(lambda: ts.stats.handled >= expected)


@pytest.fixture(scope="module")
def services(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Service]:
    """Transactions of a shop, one of them in consumer-dedup mode, and one message without any; three groups."""
    place = tmp_path_factory.mktemp("services")
    made = {name: Service(place / f"{name}.db") for name in ("shop", "billing", "offsets", "plain")}
    with tallystick.Client(broker.url, group="shop") as ts:
        for _ in range(3):
            transact(ts, made["shop"], "orders")
        transact(ts, made["shop"], "orders", mode="consumer-dedup")
        ts.send("orders", "without a transaction")
    consume(broker, made["billing"], "billing", 5, digest=True)
    consume(broker, made["offsets"], "offsets", 5, digest=True, by="offset")
    consume(broker, made["plain"], "plain", 5)
    return made


def reconcile(
    spark: SparkSession, broker: BrokerProcess, services: dict[str, Service], *groups: str, digests: bool = True
) -> ReconcileSummary:
    settings = ReconcileSettings(
        brokers=(broker.url,),
        producers=(services["shop"].url,),
        consumers=tuple(Consumer(group=name, database=services[name].url) for name in groups),
        grace_ms=0,
        digests=digests,
        consumer_dedup=True,
    )
    return run_reconcile(spark, settings)


@pytest.mark.full
def test_values_that_are_the_same_are_clean_and_counted(
    spark: SparkSession, broker: BrokerProcess, services: dict[str, Service]
) -> None:
    summary = reconcile(spark, broker, services, "billing", "offsets", "plain")
    assert (summary.verdict, summary.examples) == ("clean", ())
    compared = {group: summary.counts[f"values compared of {group}"] for group in ("billing", "offsets", "plain")}
    assert compared == {"billing": 5, "offsets": 5, "plain": 0}
    without = reconcile(spark, broker, services, "billing", digests=False)
    assert "values compared of billing" not in without.counts


@pytest.mark.full
@pytest.mark.parametrize("group", ["billing", "offsets"])
def test_another_value_under_the_same_id_is_damage(
    spark: SparkSession, broker: BrokerProcess, services: dict[str, Service], group: str
) -> None:
    """Every id is where it should be, so that only the values can tell."""
    service = services[group]
    service.execute("create table kept as select * from tallystick_digest")
    try:
        # Another first digit in each of them.
        other = "case substr(digest, 1, 1) when '0' then '1' else '0' end || substr(digest, 2)"
        assert service.execute(f"update tallystick_digest set digest = {other}") == 5
        assert reconcile(spark, broker, services, group, digests=False).verdict == "clean"
        summary = reconcile(spark, broker, services, group)
    finally:
        service.execute("delete from tallystick_digest")
        service.execute("insert into tallystick_digest select * from kept")
        service.execute("drop table kept")
    assert summary.verdict == "damaged"
    assert summary.codes == {"other_value": 5}
    assert {one.group for one in summary.examples} == {group}
    assert all("another value than the log has" in one.explanation for one in summary.examples)


@pytest.mark.full
def test_what_is_missing_for_it_is_said(
    spark: SparkSession, broker: BrokerProcess, services: dict[str, Service], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="give both"):
        ReconcileSettings(producers=("a",), consumers=(Consumer(group="g", database="b"),), digests=True).check()
    old = Service(tmp_path / "old.db")
    old.execute("drop table tallystick_digest")
    consumers = (Consumer(group="old", database=old.url, topics=("orders",)),)
    with pytest.raises(ConfigError, match="has no table tallystick_digest"):
        run_reconcile(spark, ReconcileSettings(brokers=(broker.url,), consumers=consumers, digests=True))
