"""Django's blocks where something goes wrong: a process that dies at any step, a commit that fails or is cut off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError, IntegrityError
from django.test import override_settings
from django_support import Shop, new_place, new_shop, raises
from storefront.models import Order

from cutting_proxy import CuttingProxy
from eventually import eventually, eventually_equal
from fork_server import ForkServer
from servers import Server
from tallystick import BrokerUnavailable, OutcomeUnknown
from tallystick.django import ts

AT_A_TIME = 4
SIGKILLED = -9


@pytest.mark.full
@pytest.mark.fault
@pytest.mark.parametrize(("mode", "around"), [("check-back", False), ("check-back", True), ("outbox", True)])
def test_a_kill_at_any_step_leaves_both_or_neither(any_shop: Shop, tmp_path: Path, mode: str, around: bool) -> None:
    with ts.transaction(mode=mode) as tx:  # from now on this process answers for the others, and drives their outbox
        tx.send("before", "the kills")
    with ForkServer(tmp_path, "django_producer_main") as crew:

        def killed(at: int) -> tuple[str, bool]:
            name = f"{mode}-{any_shop.new_name('kill')}"
            tallystick = {"URL": any_shop.broker.url, "GROUP": "storefront", "WAIT": True, "DATABASES": []}
            case = {"databases": any_shop.places, "tallystick": tallystick, "mode": mode, "around": around}
            child = crew.start("django_producer_main:main", at=at, note=name, topic=name, **case)
            code = child.wait()
            assert code in (0, SIGKILLED), crew.log_text()
            if code == 0:
                moments.extend(child.reported("moments")[0])
            return name, code == SIGKILLED

        moments: list[str] = []
        finished, _ = killed(0)
        known = list(moments)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            results = list(pool.map(killed, range(1, len(known) + 1)))
    assert all(hit for _, hit in results)
    assert any_shop.has(finished)
    left = {name: any_shop.has(name) for name, _ in results}
    assert set(left.values()) == {True, False}
    assert [left[name] for name, _ in results] == sorted(left.values())  # once committed, always committed
    eventually(lambda: not _pending(any_shop))
    for name, committed in left.items():
        eventually_equal(lambda name=name: any_shop.sent(name), ["made"] if committed else [])


def _pending(shop: Shop) -> list[Any]:
    return [one for one in shop.broker.transactions() if one.state not in ("committed", "rolled_back")]


@pytest.mark.full
@pytest.mark.postgresql
@pytest.mark.parametrize("around", [False, True], ids=["outermost", "in-an-atomic"])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_that_is_cut_off_is_unknown_and_the_check_back_finds_the_truth(
    postgres: Server, cut: Any, around: bool
) -> None:
    proxy = CuttingProxy(postgres.port)
    with closing(proxy), new_shop({"default": {**new_place(postgres), "PORT": str(proxy.port)}}) as shop:
        proxy._choose = lambda piece: cut if b"COMMIT" in piece else "no"
        with raises(DatabaseError if around else OutcomeUnknown):
            if around:
                with transaction.atomic():
                    _order("cut")
            else:
                _order("cut")
        proxy.calm()
        connection.close()
        assert proxy.cut == 1
        (seen,) = shop.broker.transactions()
        assert shop.outcome(seen.gid) == ("committed" if cut == "after" else "rolled_back")
        assert shop.has("cut") is (cut == "after")
        eventually_equal(lambda: shop.sent("cut"), ["made"] if cut == "after" else [])


def _order(name: str) -> None:
    with ts.transaction() as tx:
        Order.objects.create(note=name)
        tx.send(name, "made")


@pytest.mark.full
@pytest.mark.postgresql
@pytest.mark.parametrize("around", [False, True], ids=["outermost", "in-an-atomic"])
def test_a_constraint_that_is_checked_at_the_commit_fails_for_certain(postgres: Server, around: bool) -> None:
    with new_shop({"default": new_place(postgres)}) as shop:
        with connection.cursor() as cursor:
            cursor.execute("create table deferred (id int unique deferrable initially deferred)")
        with raises(IntegrityError):
            if around:
                with transaction.atomic():
                    _twice("deferred")
            else:
                _twice("deferred")
        assert not shop.has("deferred")
        (seen,) = shop.broker.transactions()
        assert shop.outcome(seen.gid) == "rolled_back"
        assert shop.sent("deferred") == []


def _twice(name: str) -> None:
    with ts.transaction() as tx:
        Order.objects.create(note=name)
        with connection.cursor() as cursor:
            cursor.execute("insert into deferred values (1), (1)")
        tx.send(name, "made")


@pytest.mark.full
def test_a_broker_that_is_away_undoes_the_block(any_shop: Shop) -> None:
    topic = any_shop.new_name()
    away = {"URL": "http://127.0.0.1:9", "GROUP": "storefront", "TIMEOUT": 1, "DATABASES": []}
    with override_settings(TALLYSTICK=away), raises(BrokerUnavailable), ts.transaction() as tx:
        Order.objects.create(note=topic)
        tx.send(topic, "made")
    assert not any_shop.has(topic)
    assert connection.get_autocommit()
