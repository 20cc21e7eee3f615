"""Blocks in one another with atomics and savepoints between them, and blocks that share a gid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import pytest
from django.db import connection, transaction
from django_support import Shop, raises
from storefront.models import Order

from tallystick.client.transactions.transaction import Transaction
from tallystick.core.errors import AlreadyCommitted, InvalidRequest
from tallystick.django import ts

MODES = ["check-back", pytest.param("outbox", marks=pytest.mark.full)]
Around = Callable[[], AbstractContextManager[object]]


class Refused(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def readers_wait_for_nobody(any_shop: Shop) -> None:
    """Without this a check-back that is just written down keeps a second connection from reading, on SQLite."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("pragma journal_mode = wal")


class Diary:
    """What a shape of blocks does, each thing as an order and as a message of the same name."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.topic = shop, shop.new_name()
        self._names: list[str] = []

    def write(self, tx: Transaction, name: str) -> None:
        Order.objects.create(note=f"{self.topic} {name}")
        tx.send(self.topic, name)
        self._names.append(name)

    def block(self, name: str) -> None:
        with ts.transaction() as tx:
            self.write(tx, name)

    def block_that_fails(self, name: str) -> None:
        with suppress(Refused), ts.transaction() as tx:
            self.write(tx, name)
            raise Refused

    def kept(self) -> str:
        """The names of what is committed; it was sent, and nothing else was."""
        kept = sorted(name for name in self._names if self.shop.has(f"{self.topic} {name}"))
        assert sorted(self.shop.sent(self.topic)) == kept
        return " ".join(kept)


def _atomic_between(diary: Diary) -> None:
    with transaction.atomic():
        diary.block("inner")


def _atomic_between_fails(diary: Diary) -> None:
    with suppress(Refused), transaction.atomic():
        diary.block("inner")
        raise Refused


def _inner_block_fails(diary: Diary) -> None:
    with transaction.atomic():
        diary.block_that_fails("inner")
        diary.block("second")


def _begin_savepoint() -> str:
    """The newer name, from Django 6.1 on, or else the older one."""
    begin = getattr(transaction, "savepoint_create", None) or transaction.savepoint
    saved: str = begin()
    return saved


def _savepoint_rolled_back(diary: Diary) -> None:
    saved = _begin_savepoint()
    diary.block("inner")
    transaction.savepoint_rollback(saved)


def _savepoint_rolled_back_after_a_failure(diary: Diary) -> None:
    saved = _begin_savepoint()
    diary.block_that_fails("inner")
    transaction.savepoint_rollback(saved)


def _savepoint_committed(diary: Diary) -> None:
    saved = _begin_savepoint()
    diary.block("inner")
    transaction.savepoint_commit(saved)


def _savepoint_of_raw_sql(diary: Diary) -> None:
    with connection.cursor() as cursor:
        cursor.execute("savepoint mine")
        diary.block("inner")
        cursor.execute("rollback to savepoint mine")
        cursor.execute("release savepoint mine")


def _block_in_block(diary: Diary) -> None:
    with ts.transaction() as middle:
        diary.block("innermost")
        diary.write(middle, "middle")


def _block_in_block_that_fails(diary: Diary) -> None:
    with suppress(Refused), ts.transaction() as middle:
        diary.block("innermost")
        diary.write(middle, "middle")
        raise Refused


def _deep(diary: Diary) -> None:
    with transaction.atomic():
        with transaction.atomic():
            diary.block("first")
            diary.block("second")
        with suppress(Refused), transaction.atomic():
            with ts.transaction() as tx:
                diary.write(tx, "third")
                with transaction.atomic():
                    diary.block("fourth")
            raise Refused


SHAPES = [
    (_atomic_between, "inner outer"),
    (_atomic_between_fails, "outer"),
    (_inner_block_fails, "outer second"),
    (_savepoint_rolled_back, "outer"),
    (_savepoint_rolled_back_after_a_failure, "outer"),
    (_savepoint_committed, "inner outer"),
    (_savepoint_of_raw_sql, "outer"),
    (_block_in_block, "innermost middle outer"),
    (_block_in_block_that_fails, "outer"),
    (_deep, "first outer second"),
]


@pytest.mark.parametrize(
    "around", [pytest.param(False, id="outermost"), pytest.param(True, id="in an atomic", marks=pytest.mark.full)]
)
@pytest.mark.parametrize(("shape", "kept"), SHAPES, ids=[shape.__name__[1:] for shape, _ in SHAPES])
def test_a_block_keeps_what_is_left_of_what_is_inside_it(
    any_shop: Shop, shape: Callable[[Diary], None], kept: str, around: bool
) -> None:
    diary = Diary(any_shop)
    with (transaction.atomic if around else nullcontext)(), ts.transaction() as outer:
        shape(diary)
        diary.write(outer, "outer")
    assert diary.kept() == kept
    assert connection.get_autocommit()


@pytest.mark.full
@pytest.mark.parametrize("shape", [shape for shape, _ in SHAPES], ids=[shape.__name__[1:] for shape, _ in SHAPES])
def test_a_block_that_fails_takes_all_inside_it_along(any_shop: Shop, shape: Callable[[Diary], None]) -> None:
    diary = Diary(any_shop)
    with raises(Refused), ts.transaction() as outer:
        shape(diary)
        diary.write(outer, "outer")
        raise Refused
    assert diary.kept() == ""


# One gid for several

AROUND = [
    pytest.param(nullcontext, id="none"),
    pytest.param(transaction.atomic, id="atomic"),
    pytest.param(ts.transaction, id="block", marks=pytest.mark.full),
]


def _in_itself(gid: str, mode: str, outer_sends: bool = True) -> None:
    with ts.transaction(gid=gid, mode=mode) as outer:
        Order.objects.create(note=gid)
        if outer_sends:
            outer.send(gid, "outer")
        with ts.transaction(gid=gid, mode=mode) as inner:
            inner.send(gid, "inner")


def _in_itself_and_empty(gid: str, mode: str) -> None:
    _in_itself(gid, mode, outer_sends=False)


def _one_after_the_other(gid: str, mode: str) -> None:
    for _ in range(2):
        with ts.transaction(gid=gid, mode=mode) as tx:
            Order.objects.get_or_create(note=gid)
            tx.send(gid, "made")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("use", [_in_itself, _in_itself_and_empty, _one_after_the_other])
def test_a_gid_of_two_blocks_of_one_transaction_is_refused_and_never_called_committed(
    any_shop: Shop, use: Callable[[str, str], None], around: Around, mode: str
) -> None:
    if around is nullcontext and use is _one_after_the_other:
        around = transaction.atomic  # else they are two transactions
    gid = any_shop.new_name("gid")
    with raises(InvalidRequest, match="used by another block of this very transaction"), around():
        use(gid, mode)
    assert not any_shop.has(gid)
    assert any_shop.sent(gid) == []
    if mode == "check-back":
        assert any_shop.outcome(gid) == "rolled_back"


def test_a_gid_that_was_refused_a_second_time_goes_out_with_its_first_block(any_shop: Shop) -> None:
    gid = any_shop.new_name("gid")
    with transaction.atomic():
        with ts.transaction(gid=gid) as tx:
            Order.objects.create(note=gid)
            tx.send(gid, "made")
        with raises(InvalidRequest, match="this very transaction"), ts.transaction(gid=gid):
            pass
        assert any_shop.sent(gid) == []
    assert any_shop.has(gid)
    assert any_shop.sent(gid) == ["made"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", AROUND)
def test_a_gid_of_an_earlier_commit_is_told_wherever_the_block_stands(
    any_shop: Shop, around: Around, mode: str
) -> None:
    gid = any_shop.new_name("gid")
    with ts.transaction(gid=gid, mode=mode) as tx:
        tx.send(gid, "made")
    with raises(AlreadyCommitted), around(), ts.transaction(gid=gid, mode=mode):
        Order.objects.create(note=gid)
    assert not any_shop.has(gid)
    assert any_shop.sent(gid) == ["made"]
