"""The first programs of the README and of the pages on source and sink run as they are, and do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shipping_support import page_program
from sink_support import content, rows

from brokers import BrokerProcess
from tallystick.link import Link

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of its own for what a program writes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page: str, name: str, broker: BrokerProcess, directory: Path) -> None:
    """The program in this process, whose Spark session it gets: paths without a root would be those of the JVM."""
    program = page_program(page, name).replace("http://127.0.0.1:7440", broker.url)
    for path in ("checkpoints/", "orders-parquet"):
        program = program.replace(f'"{path}', f'"{directory}/{path}')
    exec(compile(program, name, "exec"), {})


@pytest.mark.full
def test_the_program_of_the_readme(spark: SparkSession, broker: BrokerProcess, elsewhere: Path) -> None:
    transfers = [{"to": name, "amount": amount} for name, amount in (("bob", 30), ("bob", 5), ("ann", 31))]
    with Link(broker.url) as link:
        link.post("messages", messages=[{"topic": "transfers", "key": one["to"], "value": one} for one in transfers])
    for _ in range(2):
        run("README.md", "large_transfers.py", broker, elsewhere)
    found = rows(broker.url, "large-transfers")
    assert sorted((row["key"], row["value"]) for row in found) == [
        ("ann", b'{"to":"ann","amount":31}'),
        ("bob", b'{"to":"bob","amount":30}'),
    ]


@pytest.mark.full
def test_the_program_of_the_source(
    spark: SparkSession, broker: BrokerProcess, elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Link(broker.url) as link:
        link.post("messages", messages=[{"topic": "orders", "value": "hello"}])
    run("docs/reference/spark-source.md", "read_orders.py", broker, elsewhere)
    assert "hello" in capfd.readouterr().out
    written = spark.read.parquet(f"{elsewhere}/orders-parquet").collect()
    assert [(row["key"], row["value"]) for row in written] == [(None, "hello")]


@pytest.mark.full
def test_the_program_of_the_sink(spark: SparkSession, broker: BrokerProcess, elsewhere: Path) -> None:
    for _ in range(2):
        run("docs/reference/spark-sink.md", "write_totals.py", broker, elsewhere)
    assert sum(content(broker.url, "sales").values()) == 3
    assert content(broker.url, "cents") == {
        '{"customer":"ann","cents":3000}': 1,
        '{"customer":"bob","cents":500}': 1,
        '{"customer":"ann","cents":1200}': 1,
    }
