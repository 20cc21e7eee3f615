"""`Msg`: a two-phase message in dtm's manner.

The message is prepared at the broker, the business runs in the service's own database, and the message is submitted or
aborted by what became of that. If nobody can tell, because the process died or an answer was lost, the broker asks.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack

from tallystick.barrier.adapters.recognition import adapt, adapt_sync
from tallystick.client import AsyncClient, Client
from tallystick.client.seam import seam_of
from tallystick.dtm.branch import AsyncBranchBarrier, BranchBarrier
from tallystick.dtm.message import GROUP, MsgOptions, TwoPhaseMessage

T = TypeVar("T")

# The address that dtm's clients are given ends so; Tallystick's own does not.
_DTM_PATH = "/api/dtmsvr"

_clients: dict[str, Client] = {}
_lock = threading.Lock()


class Msg(TwoPhaseMessage):
    """Calls that are made if and only if the business of this service is committed.

    `client` is a `tallystick.Client`, or the address of a broker. With an address every message names a
    `query_prepared`; a client with a group needs none, because its members answer for each other. Options:
    `timeout_to_fail`, `retry_interval`, `request_timeout` (seconds), `branch_headers`, and `decider`, the one of the
    client's deciders that knows the outcome where the business is in Redis or MongoDB.
    """

    def __init__(self, client: Client | str, gid: str | None = None, **options: Unpack[MsgOptions]) -> None:
        seam = seam_of(_shared_client(client) if isinstance(client, str) else client)
        # An address alone makes no group: all that use one would be asked for each other's databases.
        super().__init__(seam, gid, answers=not isinstance(client, str), options=options)

    def prepare(self, query_prepared: str | None = None) -> None:
        """Have the broker keep the calls until the outcome is known; see `do_and_submit` for `query_prepared`."""
        self._seam.call(lambda: self._prepare(query_prepared))

    def submit(self) -> None:
        """The outcome is `committed`: have the calls made. Without `prepare`, the calls are simply sent.

        With `set_wait_result` this raises `CallsNotFinished` unless all of them are done at once.
        """
        self._seam.call(self._submit)

    def abort(self) -> None:
        """The outcome is `rolled_back`: the calls are never made."""
        self._seam.call(self._abort)

    def do_and_submit(self, query_prepared: str | None, business: Callable[[BranchBarrier], T]) -> T:
        """Prepare, run `business(bb)`, and submit; what it returns is returned.

        The business changes its database with `bb.call` or `bb.once`. If it raises `Failure` the message is aborted;
        after any other exception the barrier is asked first for what became of the local transaction. The exception
        goes on to the caller in any case. `query_prepared` is the URL of a check-back; None if the client answers by
        itself, which needs a `group` and the `database` that the business uses.
        """
        barrier = BranchBarrier("msg", self.gid, "00", "msg", table=self._table)
        script = self._do_and_submit(query_prepared, barrier, lambda: business(barrier))
        value: T = self._seam.play_sync(script, None)
        return value

    def do_and_submit_db(self, query_prepared: str | None, connection: Any, business: Callable[[Any], T]) -> T:
        """Prepare, run `business(connection)` in a local transaction, commit it, and submit.

        `Duplicated` if a check-back came first, `OutcomeUnknown` if nobody can tell yet whether it was committed.
        `query_prepared` may be None for a client with a group.
        """
        block = self._block(query_prepared, adapt_sync(connection))
        value: T = self._seam.play_sync(self._do_in_block(block, lambda: business(connection)), block.adapter)
        self._seam.call(lambda: self._wait_for_calls(block))
        return value


class AsyncMsg(TwoPhaseMessage):
    """The same with a `tallystick.AsyncClient`, on its event loop."""

    def __init__(self, client: AsyncClient, gid: str | None = None, **options: Unpack[MsgOptions]) -> None:
        super().__init__(seam_of(client), gid, answers=True, options=options)

    async def prepare(self, query_prepared: str | None = None) -> None:
        """As `Msg.prepare`."""
        await self._prepare(query_prepared)

    async def submit(self) -> None:
        """As `Msg.submit`."""
        await self._submit()

    async def abort(self) -> None:
        """As `Msg.abort`."""
        await self._abort()

    async def do_and_submit(
        self, query_prepared: str | None, business: Callable[[AsyncBranchBarrier], Awaitable[T] | T]
    ) -> T:
        """As `Msg.do_and_submit`; the business may be asynchronous."""
        barrier = AsyncBranchBarrier("msg", self.gid, "00", "msg", table=self._table)
        value: T = await self._seam.play_async(
            self._do_and_submit(query_prepared, barrier, lambda: business(barrier)), None
        )
        return value

    async def do_and_submit_db(
        self, query_prepared: str | None, connection: Any, business: Callable[[Any], Awaitable[T] | T]
    ) -> T:
        """As `Msg.do_and_submit_db`; the business may be asynchronous."""
        block = self._block(query_prepared, adapt(connection))
        script = self._do_in_block(block, lambda: business(connection))
        value: T = await self._seam.play_async(script, block.adapter)
        await self._wait_for_calls(block)
        return value


def _shared_client(address: str) -> Client:
    """One client for each address, as long as the process lives: a message is made for every request."""
    url = address.rstrip("/").removesuffix(_DTM_PATH)
    with _lock:
        if url not in _clients:
            _clients[url] = Client(url, group=GROUP)
        return _clients[url]
