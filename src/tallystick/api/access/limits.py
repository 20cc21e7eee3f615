"""How much each caller asks of this process: requests at once, and bytes a second, there and back."""

from __future__ import annotations

import asyncio
from typing import Any

from tallystick.api.serving.asgi import Receive, Scope, Send
from tallystick.core.access import CallerLimits, Identity
from tallystick.core.errors import Busy

MOST_KEPT = 10_000


class CallerTraffic:
    """What one caller has under way. The bytes of a second are a bucket that fills again at the rate: a request, and
    each piece of what it brings or is given, is taken while there is something in it, and may leave it in debt."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._left, self._filled_at = 0.0, float("-inf")

    def enter(self, name: str, limits: CallerLimits, now: float) -> None:
        """Raises `Busy` if the caller has to wait."""
        if limits.max_in_flight and self.in_flight >= limits.max_in_flight:
            raise Busy(f"{name} has {self.in_flight} requests under way here, the most it may have at once")
        if limits.bytes_per_second and self.debt_seconds(limits.bytes_per_second, now) > 0:
            raise Busy(f"{name} may send and read {limits.bytes_per_second} bytes a second here, and had them")
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def count(self, size: int, rate: int, now: float) -> None:
        self._fill(rate, now)
        self._left -= size

    def debt_seconds(self, rate: int, now: float) -> float:
        """How long until there is something to be had again."""
        self._fill(rate, now)
        return 0.0 if self._left > 0 else (1.0 - self._left) / rate

    def _fill(self, rate: int, now: float) -> None:
        self._left = min(float(rate), self._left + (now - self._filled_at) * rate)
        self._filled_at = now


class Traffic:
    """That of all callers who have a limit, by their names."""

    def __init__(self) -> None:
        self._callers: dict[str, CallerTraffic] = {}

    def of(self, name: str) -> CallerTraffic:
        found = self._callers.get(name)
        if found is None:
            if len(self._callers) >= MOST_KEPT:
                self._callers = {known: one for known, one in self._callers.items() if one.in_flight}
            found = self._callers[name] = CallerTraffic()
        return found


class Counted:
    """One request of a caller who has limits, from when it was let in until `leave`."""

    def __init__(self, traffic: Traffic, identity: Identity) -> None:
        self._traffic, self._rate = traffic.of(identity.name), identity.limits.bytes_per_second
        self._loop = asyncio.get_running_loop()
        self._traffic.enter(identity.name, identity.limits, self._loop.time())

    def leave(self) -> None:
        self._traffic.leave()

    def count(self, size: int) -> None:
        if self._rate:
            self._traffic.count(size, self._rate, self._loop.time())

    def receiving(self, receive: Receive) -> Receive:
        """A body is asked for at the rate, or many that were let in at once would all come as fast as they can. Whoever
        sends it has to wait then, because nobody reads."""
        over = False

        async def counted() -> Any:
            nonlocal over
            if not over:
                await self._paid()
            event = await receive()
            over = not event.get("more_body", False)
            self.count(len(event.get("body", b"")))
            return event

        return counted if self._rate else receive

    def sending(self, send: Send) -> Send:
        """An answer that comes in many pieces is held to the rate, too: nobody asks for it again in between."""

        async def counted(event: Scope) -> None:
            if event.get("more_body", False):
                await self._paid()
            self.count(len(event.get("body", b"")) + sum(piece.nbytes for piece in event.get("buffers", ())))
            await send(event)

        return counted if self._rate else send

    async def _paid(self) -> None:
        """Wait for as long as the debt is now. Others may make more of it meanwhile, and wait for that themselves."""
        debt = self._traffic.debt_seconds(self._rate, self._loop.time())
        if debt:
            await asyncio.sleep(debt)
