"""Clean-up: old rows go, and never one that a broker may still need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from client_support import Bank, pay

from brokers import BrokerProcess, running_broker
from eventually import eventually
from tallystick import AsyncClient, Client, errors, outgoing

DAY = 24 * 3600
FORGETFUL = {"dedup_retention": "1s", "max_pending_age": "1s"}


def age(bank: Bank, table: str, column: str, seconds: float) -> None:
    """Make every row of a table older, as if time had passed in the service's database."""
    shift = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', {column}, '-{seconds} seconds')",
        "postgresql": f"{column} - interval '{seconds} seconds'",
        "mysql": f"{column} - interval {seconds} second",
    }[bank.engine]
    bank.run(f"update {table} set {column} = {shift}")


def count(bank: Bank, table: str) -> int:
    only = " where op = 'msg'" if table == "tallystick_barrier" else ""
    return int(bank.rows(f"select count(*) from {table}{only}")[0][0])


def clean(ts: Client, bank: Bank, older_than: float, **options: Any) -> dict[str, int]:
    with bank.connection() as connection:
        return ts.clean(connection, older_than=older_than, **options)


def consume(url: str, bank: Bank, topic: str, group: str, expected: int) -> None:
    """Handle the messages of a topic, each with its inbox row."""
    with Client(url) as ts:
        ts.subscribe(topic, group=group, exactly_once=bank.open)(lambda message: None)
        ts.start()
        eventually(lambda: ts.stats.handled + ts.stats.duplicates >= expected)
        ts.stop()


@pytest.fixture
def fresh() -> Iterator[BrokerProcess]:
    """A broker that nobody else uses, so that nothing is pending on it; it remembers gids for an hour."""
    with running_broker(dedup_retention="1h", max_pending_age="1h", check_after="60s") as broker:
        yield broker


def test_old_rows_go_and_young_ones_stay(fresh: BrokerProcess, any_bank: Bank, topic: str, group: str) -> None:
    with Client(fresh.url, group=group, wait=True) as ts:
        pay(ts, any_bank, topic, 1)
        consume(fresh.url, any_bank, topic, group, 1)
        age(any_bank, "tallystick_barrier", "create_time", 3 * DAY)
        age(any_bank, "tallystick_inbox", "created_at", 3 * DAY)
        pay(ts, any_bank, topic, 2)
        consume(fresh.url, any_bank, topic, group, 1)
        assert clean(ts, any_bank, 2 * DAY) == {"barrier": 1, "inbox": 1, "prepared": 0, "digest": 0}
    assert (count(any_bank, "tallystick_barrier"), count(any_bank, "tallystick_inbox")) == (1, 1)


def test_nothing_younger_than_the_brokers_memory_goes(fresh: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    with Client(fresh.url, group=group, wait=True) as ts:
        pay(ts, bank, topic, 1)
        age(bank, "tallystick_barrier", "create_time", 3000)
        assert clean(ts, bank, older_than=0)["barrier"] == 0
        age(bank, "tallystick_barrier", "create_time", 1000)
        assert clean(ts, bank, older_than=0)["barrier"] == 1


def test_a_pending_transaction_keeps_the_rows_of_its_time(bank: Bank, topic: str, group: str) -> None:
    """The broker's memory is shorter here than the transaction is old, so only the transaction keeps the row."""
    with running_broker(**FORGETFUL, check_after="1h") as broker, Client(broker.url, group=group, wait=True) as ts:
        pay(ts, bank, topic, 1)
        gid = ts.new_gid()
        ts.prepare(gid, [outgoing(topic, 2)])
        age(bank, "tallystick_barrier", "create_time", 30)
        assert clean(ts, bank, older_than=0)["barrier"] == 0
        ts.rollback(gid)
        assert clean(ts, bank, older_than=0)["barrier"] == 1


def test_unsettled_messages_keep_inbox_rows(bank: Bank, topic: str, group: str) -> None:
    with running_broker(**FORGETFUL) as broker, Client(broker.url, group=group, wait=True) as ts:
        ts.create_topic(topic, queues=1)
        ts.send(topic, 1)
        consume(broker.url, bank, topic, group, 1)
        age(bank, "tallystick_inbox", "created_at", 30)
        ts.send(topic, 2)
        held = eventually(lambda: ts.receive(topic, group, invisible=60))
        assert clean(ts, bank, older_than=0)["inbox"] == 0
        assert clean(ts, bank, older_than=0, groups=[group])["inbox"] == 0
        ts.ack(group, held)
        assert clean(ts, bank, older_than=0, groups=[group])["inbox"] == 1


def test_a_broker_that_cannot_be_asked_stops_everything(
    fresh: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    with Client(fresh.url, group=group, wait=True) as ts:
        pay(ts, bank, topic, 1)
        age(bank, "tallystick_barrier", "create_time", 30 * DAY)
    with (
        Client([fresh.url, "http://127.0.0.1:9"], timeout=1) as ts,
        pytest.raises(errors.TallystickError, match=r"nothing was cleaned: http://127\.0\.0\.1:9 cannot be asked"),
    ):
        clean(ts, bank, 10 * DAY)
    assert count(bank, "tallystick_barrier") == 1


def test_messages_not_sent_and_offsets_are_never_cleaned(
    fresh: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    bank.run("insert into tallystick_outbox values ('g', 'b', x'00', 'commit', 0, '2020-01-01', '2020-01-01')")
    bank.run("insert into tallystick_offset values ('g', 's', 't', 0, 7, '2020-01-01')")
    with Client(fresh.url) as ts:
        assert clean(ts, bank, 0) == {"barrier": 0, "inbox": 0, "prepared": 0, "digest": 0}
    assert (count(bank, "tallystick_outbox"), count(bank, "tallystick_offset")) == (1, 1)


async def test_an_asynchronous_client_cleans_as_well(fresh: BrokerProcess, bank: Bank) -> None:
    bank.run(
        "insert into tallystick_barrier (trans_type, gid, branch_id, op, barrier_id, reason, create_time) "
        "values ('msg', 'old', '00', 'msg', '01', 'msg', '2020-01-01')"
    )
    async with AsyncClient(fresh.url) as ts:
        with bank.connection() as connection:
            assert await ts.clean(connection, older_than=DAY) == {"barrier": 1, "inbox": 0, "prepared": 0, "digest": 0}
        with pytest.raises(errors.InvalidRequest, match="older_than"):
            await ts.clean(None, older_than=-1)
