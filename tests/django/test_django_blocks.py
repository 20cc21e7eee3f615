"""Blocks of Django: as the outermost atomic, inside others, in one another; what comes and goes together."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import connection, connections, transaction
from django.db.utils import IntegrityError
from django_support import Shop, raises
from storefront.models import Order

from eventually import eventually
from tallystick import Client
from tallystick.barrier.errors import TransactionLost
from tallystick.core.errors import AlreadyCommitted, InvalidRequest
from tallystick.django import ts

MODES = ["check-back", "outbox"]


class Refused(Exception):
    pass


@pytest.fixture
def topic(any_shop: Shop) -> str:
    return any_shop.new_name()


@pytest.mark.parametrize("mode", MODES)
def test_a_block_commits_its_rows_and_sends_its_messages(any_shop: Shop, topic: str, mode: str) -> None:
    with ts.transaction(mode=mode) as tx:
        Order.objects.create(note=topic)
        tx.send(topic, "made")
        assert connection.in_atomic_block
        assert not any_shop.has(topic)
    assert any_shop.has(topic)
    assert any_shop.sent(topic) == ["made"]
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


@pytest.mark.parametrize("mode", MODES)
def test_a_block_that_raises_leaves_nothing(any_shop: Shop, topic: str, mode: str) -> None:
    with raises(Refused), ts.transaction(mode=mode) as tx:
        Order.objects.create(note=topic)
        tx.send(topic, "made")
        raise Refused
    assert not any_shop.has(topic)
    any_shop.broker.assert_nothing_sent(topic)
    assert connection.get_autocommit()


@pytest.mark.parametrize("mode", [*MODES, "consumer-dedup"])
def test_inside_an_atomic_the_messages_go_out_with_its_commit(any_shop: Shop, topic: str, mode: str) -> None:
    with transaction.atomic():
        with ts.transaction(mode=mode) as tx:
            Order.objects.create(note=topic)
            tx.send(topic, "made")
        assert not any_shop.has(topic)
        assert any_shop.sent(topic) == []
    assert any_shop.has(topic)
    assert any_shop.sent(topic) == ["made"]


@pytest.mark.parametrize("mode", MODES)
def test_an_atomic_that_fails_after_the_block_takes_its_messages_back(any_shop: Shop, topic: str, mode: str) -> None:
    with raises(Refused), transaction.atomic():
        with ts.transaction(mode=mode) as tx:
            Order.objects.create(note=topic)
            tx.send(topic, "made")
            gid = tx.gid
        raise Refused
    assert not any_shop.has(topic)
    assert any_shop.sent(topic) == []
    if mode == "check-back":  # nobody could tell the broker: it asks
        assert any_shop.outcome(gid) == "rolled_back"


@pytest.mark.full
def test_while_the_atomic_around_it_is_open_the_check_back_waits(any_shop: Shop, topic: str) -> None:
    with transaction.atomic():
        with ts.transaction() as tx:
            Order.objects.create(note=topic)
            tx.send(topic, "made")
        eventually(lambda: _checks(any_shop, tx.gid) > 0)
        any_shop.broker.assert_pending(tx.gid)
    assert any_shop.sent(topic) == ["made"]


def test_a_savepoint_around_the_block_that_is_rolled_back_takes_it_along(any_shop: Shop, topic: str) -> None:
    with transaction.atomic():
        with raises(Refused), transaction.atomic():
            with ts.transaction() as tx:
                Order.objects.create(note=topic)
                tx.send(topic, "made")
            raise Refused
        Order.objects.create(note=f"{topic} outside")
    assert not any_shop.has(topic)
    assert any_shop.has(f"{topic} outside")
    assert any_shop.sent(topic) == []
    assert any_shop.outcome(tx.gid) == "rolled_back"


def test_several_blocks_in_one_atomic_each_have_their_own_fate(any_shop: Shop, topic: str) -> None:
    with transaction.atomic():
        for number in (1, 2, 3):
            try:
                with ts.transaction() as tx:
                    Order.objects.create(note=f"{topic} {number}")
                    tx.send(topic, str(number))
                    if number == 2:
                        raise Refused
            except Refused:
                pass
    assert [any_shop.has(f"{topic} {number}") for number in (1, 2, 3)] == [True, False, True]
    assert any_shop.sent(topic) == ["1", "3"]


@pytest.mark.parametrize("inner_fails", [False, True], ids=["kept", "refused"])
@pytest.mark.parametrize("around", [False, True], ids=["outermost", "in an atomic"])
def test_a_block_in_a_block_is_a_savepoint_with_messages_of_its_own(
    any_shop: Shop, topic: str, inner_fails: bool, around: bool
) -> None:
    with (transaction.atomic if around else nullcontext)(), ts.transaction() as outer:
        Order.objects.create(note=f"{topic} outer")
        outer.send(topic, "outer")
        try:
            with ts.transaction() as inner:
                Order.objects.create(note=f"{topic} inner")
                inner.send(topic, "inner")
                if inner_fails:
                    raise Refused
        except Refused:
            pass
        assert any_shop.sent(topic) == []
    assert any_shop.has(f"{topic} outer")
    assert any_shop.has(f"{topic} inner") is not inner_fails
    assert sorted(any_shop.sent(topic)) == (["outer"] if inner_fails else ["inner", "outer"])


def test_what_a_block_in_a_block_sends_is_taken_back_with_the_one_around_it(any_shop: Shop, topic: str) -> None:
    with raises(Refused), ts.transaction() as outer:
        with ts.transaction() as inner:
            Order.objects.create(note=topic)
            inner.send(topic, "inner")
        outer.send(topic, "outer")
        raise Refused
    assert not any_shop.has(topic)
    assert any_shop.sent(topic) == []


def test_atomics_inside_the_block_are_its_own(any_shop: Shop, topic: str) -> None:
    with ts.transaction() as tx:
        Order.objects.create(note=topic)
        with raises(IntegrityError), transaction.atomic():
            Order.objects.create(note=topic)
        with transaction.atomic():
            Order.objects.create(note=f"{topic} more")
        tx.send(topic, "made")
    assert any_shop.has(topic)
    assert any_shop.has(f"{topic} more")
    assert any_shop.sent(topic) == ["made"]


def test_a_durable_block_must_be_the_outermost(any_shop: Shop, topic: str) -> None:
    with raises(RuntimeError, match="durable"), transaction.atomic(), ts.transaction(durable=True):
        pass
    with ts.transaction(durable=True) as tx:
        tx.send(topic, "made")
    assert any_shop.sent(topic) == ["made"]
    with raises(RuntimeError, match="durable"), ts.transaction(), transaction.atomic(durable=True):
        pass


def test_hooks_run_once_the_broker_was_told_and_one_that_fails_takes_nothing_back(any_shop: Shop, topic: str) -> None:
    seen: list[list[str]] = []

    def fail() -> None:
        seen.append(any_shop.sent(topic))
        raise Refused

    with raises(Refused), ts.transaction() as tx:
        Order.objects.create(note=topic)
        transaction.on_commit(fail)
        tx.send(topic, "made")
    assert seen == [["made"]]
    assert any_shop.has(topic)
    assert connection.get_autocommit()


def test_a_hook_that_fails_before_that_of_a_block_inside_leaves_it_to_the_check_back(
    any_shop: Shop, topic: str
) -> None:
    def fail() -> None:
        raise Refused

    with raises(Refused), transaction.atomic():
        transaction.on_commit(fail)
        with ts.transaction() as tx:
            Order.objects.create(note=topic)
            tx.send(topic, "made")
    assert any_shop.has(topic)
    assert any_shop.outcome(tx.gid) == "committed"
    assert any_shop.sent(topic) == ["made"]


def test_an_error_that_was_ignored_after_the_block_is_no_commit(any_shop: Shop, topic: str) -> None:
    """On PostgreSQL it undoes the transaction, and Django takes the rollback that follows for a commit."""
    Order.objects.create(note=f"{topic} there")
    with transaction.atomic():
        with ts.transaction() as tx:
            Order.objects.create(note=topic)
            tx.send(topic, "made")
        with connection.cursor() as cursor, raises(IntegrityError):
            cursor.execute("insert into storefront_order (note) values (%s)", [f"{topic} there"])
    committed = any_shop.has(topic)
    assert committed is (connection.vendor != "postgresql")
    assert any_shop.sent(topic) == (["made"] if committed else [])
    assert any_shop.outcome(tx.gid) == ("committed" if committed else "rolled_back")


def test_a_statement_that_ends_the_transaction_is_noticed(any_shop: Shop, topic: str) -> None:
    with raises(TransactionLost), ts.transaction() as tx:
        with connection.cursor() as cursor:
            cursor.execute("commit")
            cursor.execute("select 1")
        tx.send(topic, "made")
    connection.close()
    any_shop.broker.assert_nothing_sent(topic)


def test_a_connection_that_is_closed_inside_has_committed_nothing(any_shop: Shop, topic: str) -> None:
    with raises(TransactionLost, match="was closed inside"), ts.transaction() as tx:
        Order.objects.create(note=topic)
        connection.close()
        tx.send(topic, "made")
    assert not any_shop.has(topic)
    any_shop.broker.assert_nothing_sent(topic)
    Order.objects.create(note=f"{topic} after")


def test_inside_an_atomic_a_block_cannot_be_committed_by_hand(any_shop: Shop, topic: str) -> None:
    with raises(InvalidRequest, match="around"), transaction.atomic(), ts.transaction() as tx:
        tx.send(topic, "made")
        tx.commit(wait=True)
    any_shop.broker.assert_nothing_sent(topic)
    with ts.transaction() as tx:
        Order.objects.create(note=topic)
        tx.send(topic, "made")
        tx.commit(wait=True)
        assert any_shop.sent(topic) == ["made"]


def test_a_gid_of_ones_own_is_used_once(any_shop: Shop, topic: str) -> None:
    with ts.transaction(gid=topic) as tx:
        tx.send(topic, "made")
    with raises(AlreadyCommitted), ts.transaction(gid=topic):
        pass
    with raises(AlreadyCommitted), transaction.atomic(), ts.transaction(gid=topic):
        pass
    assert any_shop.sent(topic) == ["made"]


def test_any_client_takes_djangos_connections(any_shop: Shop, topic: str) -> None:
    with Client(any_shop.broker.url, group="storefront", wait=True) as client:
        for number, given in enumerate((connection, connections["default"])):
            with client.transaction(given) as tx:
                Order.objects.create(note=f"{topic} {number}")
                tx.send(topic, str(number))
    assert any_shop.sent(topic) == ["0", "1"]


def _checks(shop: Shop, gid: str) -> int:
    return next(one.checks for one in shop.broker.transactions() if one.gid == gid)
