"""The table of deeds: who did what, each once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from brokers import BrokerProcess, running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("audit") / "data"
    for words in (["create", "a", "--role", "reader"], ["create", "b", "--role", "admin"], ["revoke", "a"]):
        _tokens(*words, data=data)
    with running_broker(data_dir=str(data), store="rocksdb") as started:
        yield started


def _tokens(*words: str, data: Path) -> None:
    command = [sys.executable, "-m", "tallystick", "tokens", *words, "--data-dir", str(data)]
    subprocess.run(command, check=True, capture_output=True)


def test_deeds_are_read_with_who_did_them(spark: SparkSession, broker: BrokerProcess) -> None:
    audit = spark.read.format("tallystick").option("url", broker.url).option("table", "audit").load()
    rows = audit.orderBy("at").collect()
    assert [(row.action, row.subject, row.kind) for row in rows] == [
        ("create_token", "a", "local"),
        ("create_token", "b", "local"),
        ("revoke_token", "a", "local"),
    ]
    assert all(row.who and row.source == "" and row["at"] is not None for row in rows)


def test_deeds_are_counted_in_sql(spark: SparkSession, broker: BrokerProcess) -> None:
    spark.sql(f"create or replace temporary view audit using tallystick options (url '{broker.url}', table 'audit')")
    counted = spark.sql("select who, action, count(*) as deeds, max(at) as last from audit group by who, action")
    assert {row.action: row.deeds for row in counted.collect()} == {"create_token": 2, "revoke_token": 1}
