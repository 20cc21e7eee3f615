"""A connection of Django's that is lost in a block: the thread goes on with its next block."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction
from django_support import Shop, new_place, new_shop
from storefront.models import Order

from cutting_proxy import CuttingProxy
from eventually import eventually_equal
from servers import Server
from tallystick import OutcomeUnknown
from tallystick.barrier import TransactionLost
from tallystick.django import ts

ENGINES = [
    pytest.param("postgres", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


def _nothing() -> None:
    pass


def _fail() -> None:
    raise ZeroDivisionError


def _statement() -> None:
    with connection.cursor() as cursor:
        cursor.execute("select 'lost'")


def _savepoint() -> None:
    with transaction.atomic():
        _statement()


def _ignored() -> None:
    with contextlib.suppress(DatabaseError, InterfaceError):
        _statement()


LOSSES: list[tuple[bytes, Callable[[], None]]] = [
    (rb"commit\0?$", _nothing),
    (rb"rollback\0?$", _fail),
    (rb"'lost'", _statement),
    (rb"'lost'", _savepoint),
    (rb"'lost'", _ignored),
]
FAILURES = (DatabaseError, InterfaceError, OutcomeUnknown, TransactionLost, ZeroDivisionError)


@pytest.mark.parametrize("around", [False, True], ids=["outermost", "in-an-atomic"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_block_of_the_thread_works(request: pytest.FixtureRequest, engine: str, around: bool) -> None:
    server: Server = request.getfixturevalue(engine)
    proxy = CuttingProxy(server.port)
    with closing(proxy), new_shop({"default": {**new_place(server), "PORT": str(proxy.port)}}) as shop:
        for options in ({}, {"mode": "outbox"}):
            for number, (pattern, act) in enumerate(LOSSES):
                name = f"{options.get('mode', 'check-back')}-{number}"
                wanted = re.compile(pattern, re.IGNORECASE)
                proxy._choose = lambda piece, wanted=wanted: "before" if wanted.search(piece) else "no"  # type: ignore[misc]
                with pytest.raises(FAILURES):
                    _order(f"lost-{name}", around, act, **options)
                proxy.calm()
                assert not connection.in_atomic_block, name
                _order(name, around, _nothing, **options)
                _both(shop, name)
                assert not shop.has(f"lost-{name}")
                assert shop.sent(f"lost-{name}") == []


def _order(name: str, around: bool, act: Callable[[], None], **options: Any) -> None:
    with transaction.atomic() if around else contextlib.nullcontext(), ts.transaction(**options) as tx:
        Order.objects.create(note=name)
        tx.send(name, "made")
        act()


def _both(shop: Shop, name: str) -> None:
    assert shop.has(name)
    eventually_equal(lambda: shop.sent(name), ["made"])
