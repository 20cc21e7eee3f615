"""The re-driver: sends the outbox rows of one database that their own processes have left.

Each broker address has its own lane with one batch under way at most. The claim for new lanes leaves out the
addresses of existing lanes. So a broker that is away, or hangs, delays its own rows only. Its lane is set aside: one
row is tried, with a backoff, until the broker takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct, field

from tallystick.barrier.operations.outbox import OutboxRow, outbox_claim, outbox_delete
from tallystick.barrier.statement import Operation
from tallystick.client.base.refusals import SLOWLY, Refusals
from tallystick.client.base.tasks import RETRY, Tasks
from tallystick.core.errors import TallystickError

log = logging.getLogger("tallystick.client")

CLAIM_ROWS = 200
PROBE_ROWS = 1
PROBED_LANES = 8
"""Maximum number of lanes that are tried again in one round, so that many dead addresses do not delay the others."""
EXCLUDED_LANES = 400
"""Maximum number of addresses in one statement."""
AGAIN_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""A failure that comes later than this after the one before is logged as a new outage."""


class BatchResult(Struct):
    """What became of a batch. A row that the broker refuses for good appears nowhere."""

    sent: list[str] = field(default_factory=list)
    refused: TallystickError | None = None
    """The broker does not let this client send: it may do so later."""
    unavailable: TallystickError | None = None


class AddressLane:
    """The rows for one broker address: under way, or set aside until `due`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.under_way = False
        self.failures = 0
        self.due = 0.0
        self.limit = CLAIM_ROWS
        self.claimed_at = 0.0


class Redriver:
    """Claims the rows of one database, and sends those of different brokers independently. Belongs to one loop."""

    def __init__(
        self,
        run: Callable[[Operation[Any]], Awaitable[Any]],
        send: Callable[[list[OutboxRow]], Awaitable[BatchResult]],
        tasks: Tasks,
        refusals: Refusals,
    ) -> None:
        """`send` gets rows with one address."""
        self._run, self._send = run, send
        self._tasks, self._refusals = tasks, refusals
        self._lanes: dict[str, AddressLane] = {}
        self._claiming = asyncio.Lock()  # a second claim at the same time would pass over rows that the first has read
        self._more = asyncio.Event()

    async def claim_and_send(self, older_than: float) -> bool:
        """Claim rows and start to send them, without waiting for any broker.

        Returns:
            Whether there may be more rows to claim at once.
        """
        self._more.clear()
        async with self._claiming:
            for lane in self._due():
                await self._try_again(lane, older_than)
            excluded = list(self._lanes)[:EXCLUDED_LANES]
            rows = await self._run(outbox_claim(older_than=older_than, limit=CLAIM_ROWS, except_for=excluded))
            for address, some in _by_address(rows).items():
                lane = self._lanes.setdefault(address, AddressLane(address))
                if not lane.under_way:  # else its rows are claimed again when they are old enough
                    self._start(lane, some, full=len(rows) >= CLAIM_ROWS)
        return len(rows) >= CLAIM_ROWS

    def _due(self) -> list[AddressLane]:
        now = time.monotonic()
        due = [lane for lane in self._lanes.values() if not lane.under_way and lane.due <= now]
        return sorted(due, key=lambda lane: lane.due)[:PROBED_LANES]

    async def _try_again(self, lane: AddressLane, older_than: float) -> None:
        rows = await self._run(outbox_claim(older_than=older_than, limit=lane.limit, broker=lane.address))
        if rows:
            self._start(lane, rows, full=len(rows) >= lane.limit)
        elif time.monotonic() - lane.claimed_at > older_than + AGAIN_SECONDS:
            self._forget(lane)  # its rows are gone, or other re-drivers have them
        else:
            lane.due = time.monotonic() + AGAIN_SECONDS

    def _start(self, lane: AddressLane, rows: list[OutboxRow], *, full: bool) -> None:
        lane.under_way = True
        lane.claimed_at = time.monotonic()
        self._tasks.start(self._drive(lane, rows, full))

    async def _drive(self, lane: AddressLane, rows: list[OutboxRow], full: bool) -> None:
        result = await self._deliver(rows)
        lane.under_way = False
        if result is None:
            self._set_aside(lane, RETRY.wait_ms(lane.failures + 1), CLAIM_ROWS)
        elif result.refused is not None:
            # The broker answers. It may refuse some rows and take others, so all of them are tried.
            self._refusals.met(result.refused, self._place(lane.address))
            self._set_aside(lane, SLOWLY.wait_ms(lane.failures + 1), CLAIM_ROWS)
        elif result.unavailable is not None and not result.sent:
            self._set_aside(lane, RETRY.wait_ms(lane.failures + 1), PROBE_ROWS)
        else:
            self._forget(lane)
            if full and result.sent:
                self._more.set()

    async def _deliver(self, rows: list[OutboxRow]) -> BatchResult | None:
        """Send rows with one address, and delete those that were sent. None after an unexpected failure."""
        try:
            result = await self._send(rows)
        except Exception:  # it must not end the lane: its rows would wait for ever
            log.exception("%d outbox rows for %s could not be sent", len(rows), rows[0].broker)
            return None
        if result.sent:
            try:
                await self._run(outbox_delete(result.sent))
            except Exception as failure:
                # They are sent again, the broker drops them, and they are deleted then.
                log.warning("%d confirmed outbox rows could not be deleted yet: %s", len(result.sent), failure)
        return result

    def _set_aside(self, lane: AddressLane, wait_ms: int, limit: int) -> None:
        lane.failures += 1
        lane.due = time.monotonic() + wait_ms / 1000
        lane.limit = limit

    def _forget(self, lane: AddressLane) -> None:
        self._lanes.pop(lane.address, None)
        self._refusals.over(self._place(lane.address))

    def _place(self, address: str) -> str:
        return f"{id(self)} {address}"

    async def wait_for_more(self, seconds: float) -> None:
        """Wait for the next round: at most `seconds`, less if a lane may have more rows to send or is due."""
        now = time.monotonic()
        due = min((lane.due - now for lane in self._lanes.values() if not lane.under_way), default=seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, max(due, AGAIN_SECONDS))):
                await self._more.wait()

    async def send_all(self) -> None:
        """Send every row, however new it is, and wait for it. An address that takes none is tried once.

        Raises:
            TallystickError: A broker did not let this client send.
        """
        tried: set[str] = set()
        refused: TallystickError | None = None
        while True:
            async with self._claiming:
                rows = await self._run(outbox_claim(older_than=0.0, limit=CLAIM_ROWS, except_for=sorted(tried)))
            if not rows:
                break
            groups = _by_address(rows)
            for address, result in zip(groups, await asyncio.gather(*map(self._deliver, groups.values())), strict=True):
                if result is None or not result.sent:
                    tried.add(address)
                if result is not None:
                    refused = refused or result.refused
        if refused is not None:
            raise refused


def _by_address(rows: list[OutboxRow]) -> dict[str, list[OutboxRow]]:
    found: defaultdict[str, list[OutboxRow]] = defaultdict(list)
    for row in rows:
        found[row.broker].append(row)
    return found


class Outages:
    """Logs once per broker that its outbox rows have to wait, and once that they are sent again."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._failed_at: dict[str, float] = {}

    def failed(self, address: str, error: BaseException) -> None:
        now = time.monotonic()
        if now - self._failed_at.get(address, now - 2 * QUIET_SECONDS) > QUIET_SECONDS:
            self._failures[address] = 0
            log.warning(
                "outbox rows for %s stay in the outbox and are tried again until it takes them: %s",
                address or "a broker",
                error,
            )
        self._failed_at[address] = now
        self._failures[address] += 1

    def over(self, address: str) -> None:
        failures = self._failures.pop(address, 0)
        self._failed_at.pop(address, None)
        if failures:
            log.info("%s takes outbox rows again, after %d failed tries", address, failures)
