"""`with ts.transaction(conn) as tx:`, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from tallystick.client.base.calls import wait_seconds
from tallystick.client.base.misuse import NotAsync, NotSync, OneProcess
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.script import FindWay, play_async, play_sync
from tallystick.core.calls import Protocol


class TransactionBase(OneProcess):
    """What every block has, also that of a handler of `(message, conn, tx)`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    @property
    def gid(self) -> str:
        """The transaction's name. Reading it binds the transaction to one broker: see the failover rules."""
        return self._block.gid

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        tag: str | None = None,
        delay: float | None = None,
        deliver_at: float | None = None,
    ) -> None:
        """Add a message. It becomes visible if and only if the local transaction commits."""
        self._block.add(topic, value, key=key, headers=headers, tag=tag, delay=delay, deliver_at=deliver_at)

    def call(
        self,
        url: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        delay: float | None = None,
        protocol: Protocol = "http",
        branch: str = "",
    ) -> None:
        """Add a call. The broker makes it, until it succeeds, if and only if the local transaction commits.

        Without a body it is a GET, else a POST. `timeout` bounds one try, `delay` is how old the transaction must be
        before the first; both in seconds. `branch` names the call for the service, by its place ("01") if not given.
        """
        options = {"headers": headers, "timeout": timeout, "delay": delay, "protocol": protocol, "branch": branch}
        self._block.add_call(url, body, **options)


class Transaction(TransactionBase, NotAsync):
    """A block on the caller's thread, with the caller's synchronous connection."""

    _in_coroutines = "the transaction of an AsyncClient"

    def __init__(self, block: Block, way: FindWay) -> None:
        super().__init__(block)
        self._way = way

    @property
    def gid(self) -> str:
        """The transaction's name. Reading it binds the transaction to one broker: see the failover rules."""
        block = self._block
        if block.pinned is None and block.known_gid is None:
            brokers = block.producer().connection.brokers
            if not brokers.looked:  # on a cluster, a gid names its store
                self._way().call(lambda: brokers.look(block.settings.timeout))
        return block.gid

    def prepare(self) -> None:
        """With `prepare='early'`: send what was added to the broker as half messages, then begin locally."""
        self._block.must_have_begun("prepare")
        play_sync(self._block.prepare_early(), self._block.adapter, self._way)

    def commit(self, *, wait: bool | float = False) -> None:
        """Commit now, locally and at the broker; leaving the block adds nothing.

        With `wait` (True: 60 s, or seconds) stay until the messages are visible and each call was answered once.
        `CallsNotFinished` if not all calls are done then: the transaction is committed all the same, and the broker
        goes on with them.
        """
        self._block.must_have_begun("commit")
        seconds = wait_seconds(wait)
        self._block.wait = self._block.wait or seconds > 0
        play_sync(self._block.commit(), self._block.adapter, self._way)
        if seconds:
            self._way().call(lambda: self._block.wait_for_calls(seconds))

    def __enter__(self) -> Transaction:
        play_sync(self._block.begin(), self._block.adapter, self._way)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            play_sync(self._block.leave(error), self._block.adapter, self._way)
        except BaseException:
            if not self._block.ended:  # Ctrl-C before it had begun to end
                play_sync(self._block.give_up(), self._block.adapter, self._way)
            raise


class AsyncTransaction(TransactionBase, NotSync):
    """A block on the event loop.

    A synchronous connection (sqlite3, say) is used on the loop's own thread, so each of its statements blocks the
    loop. Such blocks run one after the other: two at once could wait for each other's locks on the one thread that
    would have to release them.
    """

    _on_threads = "the transaction of a Client"

    def __init__(self, block: Block, turn: asyncio.Lock | None) -> None:
        super().__init__(block)
        self._turn = turn

    async def prepare(self) -> None:
        """With `prepare='early'`: send what was added to the broker as half messages, then begin locally."""
        self._block.must_have_begun("prepare")
        await play_async(self._block.prepare_early(), self._block.adapter)

    async def commit(self, *, wait: bool | float = False) -> None:
        """Commit now, locally and at the broker; leaving the block adds nothing.

        With `wait` (True: 60 s, or seconds) stay until the messages are visible and each call was answered once.
        `CallsNotFinished` if not all calls are done then: the transaction is committed all the same, and the broker
        goes on with them.
        """
        self._block.must_have_begun("commit")
        seconds = wait_seconds(wait)
        self._block.wait = self._block.wait or seconds > 0
        try:
            await play_async(self._block.commit(), self._block.adapter)
        finally:
            self._release()  # before the wait: a service that is called may want its turn in this very process
        if seconds:
            await self._block.wait_for_calls(seconds)

    async def __aenter__(self) -> AsyncTransaction:
        if self._turn is not None:
            await self._turn.acquire()
        try:
            await play_async(self._block.begin(), self._block.adapter)
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await play_async(self._block.leave(error), self._block.adapter)
        finally:
            self._release()

    def _release(self) -> None:
        if self._turn is not None:
            self._turn.release()
            self._turn = None
