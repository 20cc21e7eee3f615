"""The outbox: sent after the local commit, deleted once the broker has it, re-driven when a process died in between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from tallystick.barrier.errors import TablesMissing
from tallystick.barrier.operations.outbox import OutboxRow, outbox_delete
from tallystick.client.base.databases import DatabaseBusy, Door, run_on_new
from tallystick.client.base.encoding import encode
from tallystick.client.base.opened_connections import REFUSED_SECONDS, RefusedOpener
from tallystick.client.base.refusals import TURNED_AWAY, Refusals
from tallystick.client.base.tasks import Tasks, repeat
from tallystick.client.connection.exchange import passes_elsewhere
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.transactions.redriver import BatchResult, Outages, Redriver
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.errors import TallystickError
from tallystick.core.ids import store_of_gid
from tallystick.core.limits import Limits
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send

log = logging.getLogger("tallystick.client")

# Rows that the process which wrote them has had time to send and delete itself.
LEFT_BEHIND_SECONDS = 5.0
DELETE_SOON_SECONDS, DELETE_LATEST_SECONDS = 0.02, 0.25
"""When confirmed rows are deleted: the more there are, the more wait for each other, since every time is a connection
and a durable write of its own."""
DELETE_FEW = 4
# A row this close to the end of the broker's memory of gids is as good as too old.
RETENTION_MARGIN_MS = 60_000
WARNED_ROWS = 10_000
NO_TABLE_SECONDS = 60.0
AROUND_A_ROW = 256
"""More than a request has beside what its one row holds: the names of the fields, and the gid."""
REDRIVE_SECONDS = 2.0
REFUSAL_SECONDS = 30.0
"""By then whatever is refused has been refused again, in whichever database its row is."""


class Outbox:
    """Sends outbox rows, of this process and of those that died."""

    def __init__(self, connection: LoopConnection) -> None:
        self._connection = connection
        self._stats = connection.stats
        self._tasks = Tasks()
        self._redrivers: dict[Door, Redriver] = {}
        self._sources: set[str] = set()  # whose doors are driven, once they are verified
        self._confirmed: deque[tuple[Door, str]] = deque()
        self._deleting = False
        self._delete_after = DELETE_SOON_SECONDS
        self._warned: set[str] = set()
        self._outages = Outages()
        self._refusals = Refusals("what the outbox sends (its rows stay there)", lasting=REFUSAL_SECONDS)

    # After a block of this process

    def row_sent(self, source: str, gid: str) -> Callable[[BaseException | None], None]:
        """What follows the answer to a row that was sent by its own block."""
        door = self._connection.databases.door(source)

        def done(error: BaseException | None) -> None:
            if isinstance(error, TURNED_AWAY):
                self._refusals.met(error)
                return
            if error is not None and passes_elsewhere(error):
                log.debug("outbox row %s is left to the re-driver: %s", gid, error)
                self._outages.failed(_asked_address(error), error)
                return
            if error is not None:
                log.warning("outbox row %s is left to the re-driver: %s", gid, error)
                return
            self._stats.count("outbox_sent")
            if door is not None:
                self._delete_soon(door, gid)

        return done

    def _delete_soon(self, door: Door, gid: str) -> None:
        # Off the block's way and many at once: a delete is a durable write in the service's database.
        self._confirmed.append((door, gid))
        if not self._deleting:
            self._connection.loop.call_soon_threadsafe(self._start_deleting)

    def _start_deleting(self) -> None:
        if not self._deleting:
            self._deleting = True
            self._tasks.start(self._delete_confirmed(self._delete_after))

    async def _delete_confirmed(self, pause: float) -> None:
        await asyncio.sleep(pause)
        self._deleting = False
        few = len(self._confirmed) <= DELETE_FEW
        self._delete_after = DELETE_SOON_SECONDS if few else min(2 * self._delete_after, DELETE_LATEST_SECONDS)
        by_door: defaultdict[Door, list[str]] = defaultdict(list)
        for _ in range(len(self._confirmed)):
            door, gid = self._confirmed.popleft()
            by_door[door].append(gid)
        for door, gids in by_door.items():
            try:
                await run_on_new(self._connection.workers, door, outbox_delete(gids))
            except Exception as failure:
                # Left to the re-driver: it sends them again, the broker drops them, and they are deleted then.
                log.warning("%d confirmed outbox rows could not be deleted yet: %s", len(gids), failure)

    # For processes that died

    def drives(self, source: str) -> bool:
        return source in self._sources

    async def drive_source(self, source: str) -> None:
        """Look after the rows of a database that a block has found, as soon as the way into it is verified."""
        if source not in self._sources:
            self._sources.add(source)
            self._tasks.start(self._drive_verified(source))

    async def _drive_verified(self, source: str) -> None:
        door = await self._connection.learning.sure(source)
        if door is None:
            self._sources.discard(source)
        else:
            self.drive(door)

    def drive(self, door: Door, every: float | None = None) -> None:
        """Look after the rows of a database from now on; a second call for the same one does nothing."""
        if door in self._redrivers:
            return
        redriver = self._redrivers[door] = Redriver(
            lambda operation: run_on_new(self._connection.workers, door, operation),
            self._send_rows,
            self._tasks,
            self._refusals,
        )
        self._connection.databases.add_outbox(door)
        pause = REDRIVE_SECONDS if every is None else every

        async def once() -> float:
            try:
                if not await self._drive_once(door):
                    await redriver.wait_for_more(pause)
            except DatabaseBusy as busy:
                log.debug("re-driving the outbox: %s", busy)
                return pause
            except TablesMissing as missing:
                log.info("no outbox to re-drive: %s", missing)
                return NO_TABLE_SECONDS
            except RefusedOpener as refused:
                log.debug("re-driving the outbox: %s", refused)
                return REFUSED_SECONDS
            return 0.0

        self._tasks.start(repeat("re-driving the outbox", once, self._refusals))

    async def drive_now(self) -> None:
        """Send every row of those databases at once, however new it is: its process is known to be gone."""
        for source in list(self._sources):
            await self._drive_verified(source)
        for redriver in list(self._redrivers.values()):
            try:
                await redriver.send_all()
            except TablesMissing as missing:
                log.info("no outbox to re-drive: %s", missing)

    async def _drive_once(self, door: Door) -> bool:
        return await self._redrivers[door].claim_and_send(LEFT_BEHIND_SECONDS)

    async def _send_rows(self, rows: list[OutboxRow]) -> BatchResult:
        """Send rows with one address. Their gids may name several stores, which have a peer each."""
        by_store: defaultdict[str, list[OutboxRow]] = defaultdict(list)
        for row in rows:
            by_store[store_of_gid(row.gid.partition(":")[0])].append(row)
        result = BatchResult()
        await asyncio.gather(*(self._send_to_store(some, result) for some in by_store.values()))
        if result.sent:
            self._stats.count("outbox_sent", len(result.sent))
        address = rows[0].broker
        if result.unavailable is not None:
            self._outages.failed(address, result.unavailable)
        elif result.sent:
            self._outages.over(address)
        return result

    async def _send_to_store(self, rows: list[OutboxRow], result: BatchResult) -> None:
        try:
            broker = await self._connection.brokers.of_row(rows[0].gid, rows[0].broker)
            retention = await broker.dedup_retention_ms()
        except TallystickError as error:
            for row in rows:
                self._row_failed(row, error, result)
            return
        await asyncio.gather(*(self._send_row(row, broker, retention, result) for row in rows))

    async def _send_row(self, row: OutboxRow, broker: BrokerPeer, retention: int, result: BatchResult) -> None:
        try:
            op, born_at = decode_row(row.payload, row.gid)
            # The broker may have forgotten that it has the messages already.
            if time.time_ns() // 1_000_000 - born_at > retention - RETENTION_MARGIN_MS:
                self._leave_to_operator(row)
                return
            await broker.ops.run(op, self._connection.settings.timeout, retry=False)
        except (TallystickError, msgspec.MsgspecError) as error:
            self._row_failed(row, error, result)
        else:
            result.sent.append(row.gid)

    def _row_failed(self, row: OutboxRow, error: Exception, result: BatchResult) -> None:
        if isinstance(error, TURNED_AWAY):
            result.refused = error
        elif isinstance(error, TallystickError) and passes_elsewhere(error):
            result.unavailable = error
        else:
            self._stats.outbox_refused += 1
            log.error("%s refuses outbox row %s, whose transaction is committed: %s", row.broker, row.gid, error)

    def _leave_to_operator(self, row: OutboxRow) -> None:
        if row.gid in self._warned:
            return
        if len(self._warned) >= WARNED_ROWS:
            self._warned.clear()
        self._warned.add(row.gid)
        self._stats.outbox_too_old += 1
        log.error(
            "outbox row %s is older than broker %s remembers gids; sent again it could arrive twice. Find out whether "
            "its messages are there, then delete the row or send them anew",
            row.gid,
            row.broker,
        )

    async def stop(self, timeout: float) -> None:
        await self._tasks.cancel()
        if self._confirmed:
            try:
                async with asyncio.timeout(timeout):
                    await self._delete_confirmed(0)
            except TimeoutError:
                # The re-driver of another process sends them again, the broker drops them, and they are deleted then.
                log.warning("confirmed outbox rows could not be deleted within %.1f s", timeout)


def _asked_address(error: BaseException) -> str:
    """The address that a request went to; empty if the error does not name it."""
    return str(error.extra.get("way", "")) if isinstance(error, TallystickError) else ""


class _WithCalls(Struct, omit_defaults=True):
    """A row with calls. One without is the bare list of its messages, as it was before there were calls."""

    messages: list[OutgoingMessage]
    calls: list[OutgoingCall]
    call_options: CallPolicy | None = None
    born_at: int = 0


_decode = msgspec.msgpack.Decoder(list[OutgoingMessage] | _WithCalls).decode


def encode_row(op: Send, limits: Limits | None) -> bytes:
    """The row; TooLarge, where the broker's limits are known, if no request could carry it."""
    row = op.messages if not op.calls else _with_calls(op)
    payload = encode(row)
    if limits is not None:
        limits.check_request(len(payload) + AROUND_A_ROW, "messages")
    return payload


def _with_calls(op: Send) -> _WithCalls:
    return _WithCalls(op.messages, op.calls, op.call_options, time.time_ns() // 1_000_000)


def decode_row(payload: bytes, gid: str) -> tuple[Send, int]:
    """What is to be sent, and when it was written down, in milliseconds since the epoch."""
    row = _decode(payload)
    if isinstance(row, list):
        return Send(row, gid), min(message.born_at for message in row)
    return Send(row.messages, gid, calls=row.calls, call_options=row.call_options), row.born_at
