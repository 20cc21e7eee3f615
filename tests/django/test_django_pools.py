"""The first blocks of a process behind a pooler without a connection to spare, and while no second connection comes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings
from django.db import connections, transaction
from django.test.utils import override_settings
from django_support import Shop, new_place, new_shop, raises
from storefront.models import Order

from cutting_proxy import FullProxy, full_proxy
from eventually import eventually
from servers import Server, pgbouncer
from tallystick import OutcomeUnknown
from tallystick.django import ts

SECONDS = 45.0
SIZE = 3

WHERE = [
    pytest.param("check-back", True, id="check-back-atomic"),
    pytest.param("outbox", False, id="outbox-alone"),
    *(
        pytest.param(mode, around, marks=pytest.mark.full, id=f"{mode}-{'atomic' if around else 'alone'}")
        for mode, around in (
            ("check-back", False),
            ("outbox", True),
            ("consumer-dedup", True),
            ("consumer-dedup", False),
        )
    ),
]
ENGINES = [
    pytest.param("postgres", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@contextlib.contextmanager
def _in_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads whose connections of Django are closed at the end."""
    with ThreadPoolExecutor(count) as threads:
        yield threads
        together = threading.Barrier(count)

        def close() -> None:
            together.wait(SECONDS)
            connections.close_all()

        for one in [threads.submit(close) for _ in range(count)]:
            one.result(SECONDS)


def _block(shop: Shop, topic: str, mode: str, around: bool, inside: threading.Barrier | None = None) -> None:
    with transaction.atomic() if around else contextlib.nullcontext(), ts.transaction(mode=mode) as tx:
        Order.objects.create(note=f"{topic} {threading.get_ident()}")
        if inside is not None:
            inside.wait(SECONDS)
        tx.send(topic, "there")


@pytest.mark.postgresql
@pytest.mark.parametrize(("mode", "around"), WHERE)
def test_as_many_first_requests_as_the_pooler_has_connections(postgres: Server, mode: str, around: bool) -> None:
    place = new_place(postgres)
    with pgbouncer(postgres, "transaction", default_pool_size=str(SIZE)) as pooler:
        place = {**place, "PORT": str(pooler.port), "DISABLE_SERVER_SIDE_CURSORS": True}
        with new_shop({"default": place}) as shop, _in_threads(SIZE) as threads:
            connections.close_all()
            topic, inside = shop.new_name(), threading.Barrier(SIZE)
            blocks = [threads.submit(_block, shop, topic, mode, around, inside) for _ in range(SIZE)]
            for one in blocks:
                one.result(SECONDS)
            assert Order.objects.filter(note__startswith=topic).count() == SIZE
            connections.close_all()
            if mode != "consumer-dedup":
                eventually(lambda: shop.sent(topic) == ["there"] * SIZE, "all messages")


@contextlib.contextmanager
def _shop_behind(server: Server) -> Iterator[tuple[Shop, FullProxy]]:
    with full_proxy(server.port) as proxy, new_shop({"default": new_place(_through(server, proxy))}) as shop:
        connections["default"].ensure_connection()
        yield shop, proxy
        proxy.make_room()
        connections.close_all()


def _through(server: Server, proxy: FullProxy) -> Any:
    far = dataclasses.replace(server, port=proxy.port)
    far.new_database = server.new_database  # type: ignore[method-assign]
    return far


@pytest.mark.parametrize(("mode", "around"), WHERE)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_first_block_ends_while_no_second_connection_comes(
    request: pytest.FixtureRequest, engine: str, mode: str, around: bool
) -> None:
    with _shop_behind(request.getfixturevalue(engine)) as (shop, proxy):
        proxy.full = True
        began, topic = time.monotonic(), shop.new_name()
        _block(shop, topic, mode, around)
        assert time.monotonic() - began < SECONDS
        proxy.make_room()
        if mode != "consumer-dedup":
            eventually(lambda: shop.sent(topic) == ["there"], "the message")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_only_a_second_connection_could_tell_is_waited_for_with_a_limit(
    request: pytest.FixtureRequest, engine: str
) -> None:
    """Whether a mark under the user's gid is committed, while the transaction around the block is open."""
    with _shop_behind(request.getfixturevalue(engine)) as (shop, proxy):
        gid = shop.new_name("gid")
        with ts.transaction(gid=gid) as tx:
            tx.send(gid, "there")
        proxy.full = True
        began = time.monotonic()
        limited = {**settings.TALLYSTICK, "TIMEOUT": 2.0}
        with (
            override_settings(TALLYSTICK=limited),
            raises(OutcomeUnknown, match="no second connection within 2 s"),
            transaction.atomic(),
            ts.transaction(gid=gid),
        ):
            Order.objects.create(note=gid)
        assert time.monotonic() - began < SECONDS
        assert not Order.objects.filter(note=gid).exists()
