"""Handlers: the ORM's changes and the inbox row, or the offset, in one atomic."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django_support import Shop
from storefront.models import Order

from eventually import eventually, eventually_equal
from tallystick import Message
from tallystick.client.connection import questions
from tallystick.client.seam import seam_of
from tallystick.core.errors import InvalidRequest
from tallystick.core.wire import GroupView
from tallystick.django import called_once, ts
from tallystick.django.models import InboxEntry


@pytest.fixture
def topic(any_shop: Shop) -> Iterator[str]:
    before = list(ts.registered)
    yield any_shop.new_name()
    ts.stop()
    ts.close()
    ts.registered[:] = before


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="inbox"),
        pytest.param({"by": "offset"}, id="offset", marks=pytest.mark.full),
        pytest.param({"batch": 10}, id="batches", marks=pytest.mark.full),
    ],
)
def test_a_handler_has_its_effect_once_and_sends_with_it(any_shop: Shop, topic: str, options: dict[str, Any]) -> None:
    failed: list[str] = []

    @ts.subscribe(topic, group=topic, **options)
    def handle(message: Message, tx: Any) -> None:
        assert connection.in_atomic_block
        with transaction.atomic():
            Order.objects.create(note=f"{topic} {message.text}")
        tx.send(f"{topic}-answers", message.text)
        if message.text == "2" and not failed:
            failed.append(message.text)
            raise ValueError("the first time it fails")

    for number in range(5):
        ts.send(topic, str(number))
    ts.take_up([topic])
    ts.start()
    eventually_equal(lambda: sorted(any_shop.sent(f"{topic}-answers")), [str(number) for number in range(5)])
    assert Order.objects.filter(note__startswith=f"{topic} ").count() == 5
    assert failed == ["2"]


def test_a_handler_of_a_message_alone_runs_in_the_transaction_of_its_inbox_row(any_shop: Shop, topic: str) -> None:
    rows: list[int] = []

    @ts.subscribe(topic, group=topic)
    def handle(message: Message) -> None:
        rows.append(InboxEntry.objects.filter(consumer_group=topic, message_id=message.id).count())
        assert connection.in_atomic_block
        Order.objects.create(note=topic)

    ts.send(topic, "x")
    ts.take_up([topic])
    ts.start()
    eventually(lambda: any_shop.has(topic))
    assert rows == [1]


@pytest.mark.parametrize("using", ["default", None])
def test_a_handler_that_runs_nothing_is_refused_or_fails(any_shop: Shop, topic: str, using: str | None) -> None:
    """What a decorator returns is seen only when it is called: that message fails until it is a result."""

    async def asynchronous(message: Message) -> None: ...

    def yields(message: Message) -> Iterator[None]:
        yield

    for handler, said in ((asynchronous, "needs AsyncClient"), (yields, "generator function")):
        with pytest.raises(InvalidRequest, match=f"handler.*{said}|{said}"):
            ts.subscribe(topic, group=topic, using=using)(handler)

    @ts.subscribe(topic, group=topic, using=using)
    @functools.wraps(asynchronous)
    def handle(message: Message) -> Any:
        if message.attempt == 1:
            return asynchronous(message)
        Order.objects.create(note=topic)
        return None

    ts.send(topic, "x")
    ts.take_up([topic])
    ts.start()
    eventually(lambda: any_shop.has(topic))
    assert ts.stats.handler_failures == 1


def test_a_view_that_runs_nothing_is_not_called_once(any_shop: Shop) -> None:
    async def view(request: Any) -> None: ...

    with pytest.raises(InvalidRequest, match="view: it must be a plain function"):
        called_once(view)


@pytest.mark.full
def test_a_hook_that_fails_after_the_commit_of_a_handler_takes_nothing_back(any_shop: Shop, topic: str) -> None:
    calls: list[str] = []

    def fail() -> None:
        raise RuntimeError("a hook")

    @ts.subscribe(topic, group=topic)
    def handle(message: Message) -> None:
        calls.append(message.text)
        Order.objects.create(note=topic)
        transaction.on_commit(fail)

    ts.send(topic, "x")
    ts.take_up([topic])
    ts.start()
    eventually(lambda: any_shop.has(topic))
    eventually_equal(lambda: _unsettled(topic), 0)
    assert calls == ["x"]


def _unsettled(topic: str) -> int:
    operations = seam_of(ts.client).operations

    async def groups() -> list[GroupView]:
        broker, left = await operations._broker(None)
        return await questions.groups(broker, left)

    views = seam_of(ts.client).call(groups)
    return sum(view.oldest_unsettled_at is not None for view in views if view.group == topic)


@pytest.mark.full
def test_a_handler_without_a_database_runs_in_no_transaction(any_shop: Shop, topic: str) -> None:
    seen: list[bool] = []

    @ts.subscribe(topic, group=topic, using=None)
    def handle(message: Message) -> None:
        Order.objects.create(note=topic)
        seen.append(connection.in_atomic_block)

    ts.send(topic, "x")
    ts.take_up([topic])
    ts.start()
    eventually(lambda: seen)
    assert seen == [False]
    assert any_shop.has(topic)
