"""Django marks a transaction for rollback after an error that was ignored: a block or handler that ends has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.utils import IntegrityError
from django.test import Client as Browser
from django_support import Shop, raises
from storefront.models import Order

from eventually import eventually, eventually_equal
from tallystick.barrier.errors import TransactionLost
from tallystick.django import ts


class Refused(Exception):
    pass


def _by_an_error(note: str) -> None:
    """Django marks what a save has failed in, if the error leaves its own atomic, which has no savepoint."""
    with suppress(IntegrityError):
        Order.objects.create(note=note)


def _without_a_savepoint(note: str) -> None:
    with suppress(Refused), transaction.atomic(savepoint=False):
        raise Refused


def _by_hand(note: str) -> None:
    transaction.set_rollback(True)


MARKS = [_by_an_error, _without_a_savepoint, _by_hand]


@pytest.fixture
def topic(any_shop: Shop) -> Iterator[str]:
    before = list(ts.registered)
    yield any_shop.new_name()
    ts.stop()
    ts.close()
    ts.registered[:] = before


@pytest.mark.parametrize("around", [False, True], ids=["outermost", "in an atomic"])
@pytest.mark.parametrize("sends", [False, True], ids=["silent", "sends"])
@pytest.mark.parametrize("mark", MARKS)
def test_a_block_that_is_marked_for_rollback_is_undone_and_says_so(
    any_shop: Shop, topic: str, mark: Callable[[str], None], sends: bool, around: bool
) -> None:
    with (transaction.atomic if around else nullcontext)():
        with raises(TransactionLost, match="marked the transaction for rollback") as failed, ts.transaction() as tx:
            Order.objects.create(note=topic)
            if sends:
                tx.send(topic, "made")
            mark(topic)
        Order.objects.create(note=f"{topic} after")
    assert failed.value.rolled_back
    assert isinstance(failed.value.__cause__, IntegrityError) is (mark is _by_an_error)
    assert not any_shop.has(topic)
    assert any_shop.has(f"{topic} after")
    any_shop.broker.assert_nothing_sent(topic)


def test_a_mark_that_was_taken_back_is_none(any_shop: Shop, topic: str) -> None:
    with ts.transaction() as tx:
        Order.objects.create(note=topic)
        transaction.set_rollback(True)
        transaction.set_rollback(False)
        tx.send(topic, "made")
    assert any_shop.has(topic)
    assert any_shop.sent(topic) == ["made"]


def _with_message(handle: Callable[[Any], None]) -> Callable[..., None]:
    return lambda message: handle(message)


def _with_tx(handle: Callable[[Any], None]) -> Callable[..., None]:
    return lambda message, tx: handle(message)


def _with_connection(handle: Callable[[Any], None]) -> Callable[..., None]:
    return lambda message, connection, tx: handle(message)


@pytest.mark.parametrize(
    ("mark", "kind", "options"),
    [
        pytest.param(_by_an_error, _with_tx, {}, id="error"),
        pytest.param(_by_hand, _with_message, {}, id="by-hand", marks=pytest.mark.full),
        pytest.param(_without_a_savepoint, _with_connection, {}, id="no-savepoint", marks=pytest.mark.full),
        pytest.param(_by_an_error, _with_message, {"by": "offset"}, id="offset", marks=pytest.mark.full),
        pytest.param(_by_hand, _with_tx, {"by": "offset"}, id="offset-sends", marks=pytest.mark.full),
        pytest.param(_by_an_error, _with_tx, {"batch": 10}, id="batches", marks=pytest.mark.full),
        pytest.param(_without_a_savepoint, _with_message, {"batch": 10}, id="batches-message", marks=pytest.mark.full),
    ],
)
def test_the_message_of_a_handler_whose_atomic_is_marked_comes_again(
    any_shop: Shop, topic: str, mark: Callable[[str], None], kind: Callable[..., Any], options: dict[str, Any]
) -> None:
    marked: list[str] = []

    def handle(message: Any) -> None:
        Order.objects.create(note=f"{topic} {message.text}")
        if message.text not in marked:
            marked.append(message.text)
            mark(f"{topic} {message.text}")

    ts.subscribe(topic, group=topic, **options)(kind(handle))
    for number in "12":
        ts.send(topic, number)
    ts.take_up([topic])
    ts.start()
    eventually(lambda: any_shop.has(f"{topic} 1") and any_shop.has(f"{topic} 2"))
    eventually_equal(lambda: Order.objects.filter(note__startswith=f"{topic} ").count(), 2)


def test_a_call_whose_atomic_is_marked_has_no_effect_and_is_no_success(shop: Shop) -> None:
    note = shop.new_name("note")
    query = f"trans_type=msg&gid={note}&branch_id=01&op=action"
    with connections["default"].execute_wrapper(_mark_after(note)):
        answer = Browser(raise_request_exception=False).post(f"/called/{note}?{query}")
    assert answer.status_code >= 400
    assert not shop.has(note)
    assert Browser().post(f"/called/{note}?{query}").status_code == 200
    assert shop.has(note)


def _mark_after(note: str) -> Callable[..., Any]:
    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if params and note in params and "storefront_order" in sql:
            transaction.set_rollback(True)
        return result

    return wrapper
