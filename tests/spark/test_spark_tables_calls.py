"""The table of calls: every call of a transaction with an outcome, each once, with what has come of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import Prepare, Rollback, Send
from tallystick.link import Link
from tallystick.spark import tables
from tallystick.spark.tables import TableReader, columns_of

NOBODY = "http://127.0.0.1:9/nobody"
LATER = 24 * 3600 * 1000
COUNT = 15


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    settings = {"call_retry_first": "1h", "call_retry_cap": "1h", "call_breaker_failures": 1_000}
    with running_broker(check_after="1h", **settings) as running:
        with RawClient(running.url) as client:
            _fill(client)
        _wait_until_parked(running)
        yield running


def _fill(client: RawClient) -> None:
    """Two calls in each transaction: at a later time, in vain, and of ones that were rolled back or are undecided."""
    pair = [OutgoingCall(NOBODY, b"12345"), OutgoingCall(NOBODY)]
    later = [OutgoingCall(NOBODY, delay_ms=LATER), OutgoingCall(f"{NOBODY}/second", delay_ms=LATER)]
    at_once = CallPolicy(concurrent=True, max_attempts=1)
    client.batch(*(Send([], f"later-{number}", later, CallPolicy(concurrent=True)) for number in range(COUNT)))
    client.batch(*(Send([], f"vain-{number}", pair, at_once) for number in range(COUNT)))
    client.batch(*(Prepare(f"undone-{number}", "shop", [], calls=pair) for number in range(COUNT)))
    client.batch(*(Rollback(f"undone-{number}") for number in range(COUNT)))
    client.do(Prepare("undecided", "shop", [], calls=pair))


def _wait_until_parked(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + 30
    with Link(broker.url) as link:
        while link.get("info")["calls_parked"] < 2 * COUNT:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def rows_of(broker: BrokerProcess, **options: str) -> list[dict[str, Any]]:
    """All partitions, as Spark would read them."""
    reader = TableReader({"url": broker.url, "table": "calls", **options}, columns_of("calls"))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def places(kind: str) -> Counter[tuple[str, int]]:
    return Counter((f"{kind}-{number}", index) for number in range(COUNT) for index in range(2))


def found(rows: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((row["gid"], row["index"]) for row in rows)


@pytest.mark.parametrize("page", [1, 7, 20_000])
def test_every_call_comes_once_whatever_the_pages(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(tables, "PAGE_ROWS", page)
    for partitions in ("1", "4"):
        assert found(rows_of(broker, minPartitions=partitions)) == places("later") + places("vain") + places("undone")


def test_state_and_age_are_chosen_by_the_broker(broker: BrokerProcess) -> None:
    assert found(rows_of(broker, state="waiting")) == places("later")
    assert found(rows_of(broker, state="parked")) == places("vain")
    assert found(rows_of(broker, state="dropped")) == places("undone")
    assert rows_of(broker, state="done") == []
    assert rows_of(broker, olderThan="1h") == []


def test_a_call_is_shown_with_all_that_is_known_of_it(broker: BrokerProcess) -> None:
    parked = next(row for row in rows_of(broker, state="parked") if row["index"] == 0)
    assert (parked["branch"], parked["url"], parked["protocol"], parked["size"]) == ("01", NOBODY, "http", 5)
    assert (parked["attempts"], parked["next_at"], parked["finished_at"]) == (1, None, None)
    assert parked["last_error"]
    waiting = next(row for row in rows_of(broker, state="waiting") if row["index"] == 1)
    assert (waiting["branch"], waiting["attempts"], waiting["last_error"]) == ("02", 0, None)
    assert round((waiting["next_at"] - waiting["created_at"]).total_seconds() * 1000) == LATER


def test_a_state_that_a_call_cannot_be_in_is_refused(broker: BrokerProcess) -> None:
    with pytest.raises(InvalidRequest, match="'prepared' is not one of 'waiting', 'parked'"):
        rows_of(broker, state="prepared")
    with Link(broker.url) as link, pytest.raises(InvalidRequest, match="held"):
        link.get("tables", "calls", "splits", state="held")


@pytest.mark.spark
def test_calls_are_counted_by_host_and_reason(spark: SparkSession, broker: BrokerProcess) -> None:
    calls = spark.read.format("tallystick").option("url", broker.url).option("table", "calls").load()
    counted = {(row.state, row.attempts): row["count"] for row in calls.groupBy("state", "attempts").count().collect()}
    assert counted == {("waiting", 0): 2 * COUNT, ("parked", 1): 2 * COUNT, ("dropped", 0): 2 * COUNT}
