"""Views: ATOMIC_REQUESTS, async views, the check-back URL, calls of a broker; and a prefork server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test import AsyncClient, Client, override_settings
from django_support import Shop, environment_of, new_place, new_shop
from storefront.models import Order

from servers import Server
from tallystick.core.wire import SOURCE_HEADER
from tallystick.django import ts
from tallystick.django.models import BarrierEntry
from tallystick.local import LocalService, module


@pytest.fixture
def atomic_requests(shop: Shop) -> Iterator[None]:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@pytest.fixture
def topic(shop: Shop) -> str:
    return shop.new_name()


def test_a_view_without_a_transaction_of_its_own(shop: Shop, topic: str) -> None:
    assert Client().post(f"/order/{topic}/{topic}").status_code == 200
    assert shop.has(topic)
    assert shop.sent(topic) == [topic]


@pytest.mark.usefixtures("atomic_requests")
def test_with_atomic_requests_the_messages_go_out_with_the_request(shop: Shop, topic: str) -> None:
    assert Client().post(f"/order/{topic}/{topic}").status_code == 200
    assert shop.has(topic)
    assert shop.sent(topic) == [topic]


@pytest.mark.usefixtures("atomic_requests")
def test_with_atomic_requests_a_view_that_fails_after_its_block_sends_nothing(shop: Shop, topic: str) -> None:
    answer = Client(raise_request_exception=False).post(f"/order-and-fail/{topic}/{topic}")
    assert answer.status_code == 500
    assert not shop.has(topic)
    assert shop.sent(topic) == []


@pytest.mark.usefixtures("atomic_requests")
def test_with_atomic_requests_a_view_may_stay_outside(shop: Shop, topic: str) -> None:
    assert Client().post(f"/order-at-once/{topic}/{topic}").status_code == 200
    assert shop.sent(topic) == [topic]


def test_without_atomic_requests_a_view_that_fails_after_its_block_has_sent(shop: Shop, topic: str) -> None:
    answer = Client(raise_request_exception=False).post(f"/order-and-fail/{topic}/{topic}")
    assert answer.status_code == 500
    assert shop.has(topic)
    assert shop.sent(topic) == [topic]


def test_an_async_view_uses_a_thread(shop: Shop, topic: str) -> None:
    answer = asyncio.run(AsyncClient().post(f"/order-async/{topic}/{topic}"))
    assert answer.status_code == 200
    assert shop.has(topic)
    assert shop.sent(topic) == [topic]


def test_an_async_view_without_a_thread_is_told_so(shop: Shop, topic: str) -> None:
    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        asyncio.run(AsyncClient().post(f"/order-wrongly-async/{topic}/{topic}"))
    assert not shop.has(topic)
    shop.broker.assert_nothing_sent(topic)


# The check-back


def test_the_check_back_url_gives_the_four_answers(shop: Shop, topic: str) -> None:
    with ts.transaction() as tx:
        tx.send(topic, "made")
    assert _check(tx.gid) == (200, "committed")
    assert _check(f"{topic}-never") == (409, "rolled_back")
    with transaction.atomic():
        with ts.transaction() as open_still:
            open_still.send(topic, "made")
        assert _check(open_still.gid) == (425, "unknown")
    assert Client().post("/tallystick/check?gid=x").status_code == 405
    assert Client().get("/tallystick/check").status_code == 400


@pytest.mark.parametrize("source", ["sqlite:elsewhere#/0123", "nonsense", "postgresql://elsewhere:1/x", "#"])
def test_a_source_that_is_no_barrier_of_this_service_decides_nothing(shop: Shop, topic: str, source: str) -> None:
    wrong = Client().get(f"/tallystick/check?gid={topic}", headers={SOURCE_HEADER: source})
    assert wrong.status_code == 500
    assert not BarrierEntry.objects.filter(gid=topic).exists()
    with ts.transaction(gid=topic) as tx:
        tx.send(topic, "made")
    assert shop.sent(topic) == ["made"]


def _check(gid: str) -> tuple[int, str]:
    answer = Client(enforce_csrf_checks=True).get(f"/tallystick/check?gid={gid}")
    return answer.status_code, answer.json()["outcome"]


# Calls


def test_a_call_has_its_effect_once_and_a_failure_is_told(shop: Shop, topic: str) -> None:
    query = f"trans_type=msg&gid={topic}&branch_id=01&op=action"
    for _ in range(2):
        answer = Client(enforce_csrf_checks=True).post(f"/called/{topic}?{query}")
        assert (answer.status_code, answer.json()["dtm_result"]) == (200, "SUCCESS")
    assert Order.objects.filter(note=topic).count() == 1
    assert Client().post(f"/called/refused?{query}2").status_code == 409
    assert Client().post(f"/called/{topic}").status_code == 400


# A server


@pytest.mark.full
@pytest.mark.postgresql
def test_under_gunicorn_with_persistent_connections(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {**new_place(postgres), "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
    with new_shop({"default": place}) as shop:
        settings = {"URL": shop.broker.url, "GROUP": "storefront", "WAIT": True}
        for name, value in environment_of(shop.places, settings).items():
            monkeypatch.setenv(name, value)
        options = ["--pythonpath", str(Path(__file__).parent), "--bind", "127.0.0.1:{port}"]
        options += ["--workers", "2", "--preload", "storefront.wsgi"]
        with LocalService("gunicorn", module("gunicorn", *options), tmp_path / "log", {}) as service:
            for number in range(20):
                _post(f"{service.url}/order/prefork/{number}")
        assert sorted(shop.sent("prefork"), key=int) == [str(number) for number in range(20)], service.log_text()
        assert all(shop.has(str(number)) for number in range(20))


def _post(url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
        return json.load(answer)


@override_settings(DEBUG=True)
def test_what_a_block_asks_the_database_is_in_djangos_log_of_queries(shop: Shop, topic: str) -> None:
    connection.force_debug_cursor = True
    try:
        seen: list[str] = []

        def watch(execute: Any, sql: str, *rest: Any) -> Any:
            seen.append(sql)
            return execute(sql, *rest)

        with connection.execute_wrapper(watch), ts.transaction() as tx:
            tx.send(topic, "made")
        assert any("tallystick_barrier" in sql for sql in seen)
        assert any("tallystick_barrier" in query["sql"] for query in connection.queries)
    finally:
        connection.force_debug_cursor = False
    assert shop.sent(topic) == ["made"]
