"""Telling somebody: every event is logged, and posted to the alert URL if there is one."""

from __future__ import annotations

import asyncio
import logging

from tallystick.broker.metrics import Metrics
from tallystick.broker.outbound.answer import OutboundFailed
from tallystick.broker.outbound.outbound import Outbound
from tallystick.store.protocol import Event

log = logging.getLogger("tallystick.broker.alerts")

ALERTING = ("parked", "exhausted", "dead_letter", "conflict", "call_failing", "call_parked")
MAX_WAITING = 1_000


class Alerts:
    """Alerts leave one by one, in order, behind the broker's back: a slow receiver delays nobody."""

    def __init__(self, url: str, outbound: Outbound, metrics: Metrics) -> None:
        self._url, self._outbound, self._metrics = url, outbound, metrics
        self._waiting: asyncio.Queue[Event] = asyncio.Queue(MAX_WAITING)

    def tell(self, event: Event) -> None:
        log.warning("%s %s: %s", event.kind, event.subject, event.detail)
        if not self._url or event.kind not in ALERTING:
            return
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            self._metrics.alerts_failed.inc()

    async def run(self) -> None:
        while True:
            event = await self._waiting.get()
            body = body_of(event)
            try:
                await self._outbound.post_json(self._url, body, seconds=5)
            except OutboundFailed as error:
                self._metrics.alerts_failed.inc()
                log.warning("the alert URL did not take %s of %s: %s", event.kind, event.subject, error)


def body_of(event: Event) -> dict[str, str | int]:
    """The event, and the keys of dtm's alert webhook where the event concerns a transaction or one of its calls."""
    body: dict[str, str | int] = {"event": event.kind, "subject": event.subject, "detail": event.detail}
    if event.gid:
        body["gid"] = event.gid
    if event.call is not None:
        body["status"] = "submitted"  # calls are only made for what is committed and not finished
        body["branch"] = event.call.url.removeprefix("grpc://")  # as dtm writes it
        body["error"] = event.call.error
        body["retry_count"] = event.call.failures
    return body
