"""Alerts: posted in order to whoever listens, and never at the cost of the broker's own work."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from aiohttp import web
from inner_broker import Inside, inside
from web_sites import Site, answering, closed_port, rough_site, silence, site

from eventually import eventually_async
from tallystick.broker import alerts as alerts_module
from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.errors import ConfigError, OutcomeConflict
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Nack, Rollback, Send
from tallystick.core.wire import ReceiveRequest


async def conflict(broker: Inside, gid: str) -> None:
    """Something that an operator hears of."""
    await broker.do(Rollback(gid))
    with pytest.raises(OutcomeConflict):
        await broker.do(Commit(gid))


async def told(there: Site, count: int) -> list[dict[str, str]]:
    async def look() -> bool:
        return len(there.bodies) >= count

    await eventually_async(look, f"{count} alerts")
    return there.bodies


async def failed(broker: Inside, count: int) -> None:
    async def look() -> bool:
        return broker.metric("alerts_failed_total") == count

    await eventually_async(look, f"{count} failed alerts, there are {broker.metric('alerts_failed_total')}")


async def test_every_kind_of_event_is_posted() -> None:
    async with site(answering(204)) as there, inside(alert_url=f"{there.url}/hook", max_attempts=1) as broker:
        await conflict(broker, "contradicted")
        for gid, wish in (("stuck", "park"), ("given-up", "rollback")):
            await broker.prepare(gid, max_checks=1, on_exhausted=wish)
            assert [one.gid for one in await broker.poll()] == [gid]
            await broker.answer(**{gid: "unknown"})
        await broker.do(Send([OutgoingMessage("orders", b"bad")]))
        (held,) = await broker.door.receive("g", ReceiveRequest("orders"))
        await broker.do(Nack("g", [held.receipt], dead=True, reason="broken"))
        bodies = await told(there, 4)
        assert [body["event"] for body in bodies] == ["conflict", "parked", "exhausted", "dead_letter"]
        assert [body["subject"] for body in bodies[:3]] == ["contradicted", "stuck", "given-up"]
        assert all(body["detail"] for body in bodies)
        # The gid has dtm's name as well, where the event concerns a transaction.
        assert [body.get("gid") for body in bodies] == ["contradicted", "stuck", "given-up", None]
        assert {name for body in bodies for name in body} == {"event", "subject", "detail", "gid"}
        assert {(request.method, request.path, request.content_type) for request in there.requests} == {
            ("POST", "/hook", "application/json")
        }
        assert broker.metric("alerts_failed_total") == 0


async def test_order_is_kept_even_if_the_receiver_is_slow_now_and_then() -> None:
    count = 0

    async def uneven(_: web.Request) -> web.Response:
        nonlocal count
        count += 1
        await asyncio.sleep(0.05 if count % 3 == 0 else 0)
        return web.Response()

    async with site(uneven) as there, inside(alert_url=there.url) as broker:
        for number in range(12):
            await conflict(broker, f"t{number}")
        bodies = await told(there, 12)
        assert [body["subject"] for body in bodies] == [f"t{number}" for number in range(12)]
        assert there.most_at_once == 1


async def test_a_receiver_that_is_down_is_counted_and_later_alerts_arrive() -> None:
    port = closed_port()
    async with inside(alert_url=f"http://127.0.0.1:{port}/") as broker:
        await conflict(broker, "lost1")
        await conflict(broker, "lost2")
        await failed(broker, 2)
        async with site(answering(200), port) as there:
            await conflict(broker, "arrives")
            assert [body["subject"] for body in await told(there, 1)] == ["arrives"]
        assert broker.metric("alerts_failed_total") == 2
        assert broker.metric("conflict_total") == 3


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_an_answer_that_is_no_success_is_counted(status: int) -> None:
    async with site(answering(status)) as there, inside(alert_url=there.url) as broker:
        await conflict(broker, "t")
        await failed(broker, 1)


async def test_a_receiver_that_hangs_holds_up_nothing_but_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_module, "MAX_WAITING", 5)
    async with rough_site(silence) as url, inside(alert_url=url) as broker:
        began = time.monotonic()
        for number in range(10):
            await conflict(broker, f"t{number}")
        assert time.monotonic() - began < 40
        # One is out, five wait; what is beyond is counted instead of kept.
        await failed(broker, 4)
        began = time.monotonic()
    assert time.monotonic() - began < 20


async def test_without_an_alert_url_events_are_logged_and_counted_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tallystick.broker.alerts")
    async with inside() as broker:
        await conflict(broker, "t")
        await asyncio.sleep(0.01)
        assert broker.metric("conflict_total") == 1
        assert broker.metric("alerts_failed_total") == 0
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["conflict t"]


async def test_an_alert_url_that_is_not_allowed_is_refused_at_the_start() -> None:
    flags = {"store": "memory", "alert_url": "http://example.com/hook"}
    with pytest.raises(ConfigError) as refused:
        Broker(load_config(flags=flags, environ={}))
    assert refused.value.field == "alert_url"
