"""`with ts.transaction(conn) as tx:`, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from tallystick.client.block import Block
from tallystick.client.script import CallOnLoop, play_async, play_sync


class TransactionBase:
    """What user code sees inside the block."""

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


class Transaction(TransactionBase):
    """A block on the caller's thread, with the caller's synchronous connection."""

    def __init__(self, block: Block, call_on_loop: CallOnLoop) -> None:
        super().__init__(block)
        self._call_on_loop = call_on_loop

    def prepare(self) -> None:
        """With `prepare='early'`: send what was added to the broker as half messages, then begin locally."""
        play_sync(self._block.prepare_early(), self._block.adapter, self._call_on_loop)

    def __enter__(self) -> Transaction:
        play_sync(self._block.begin(), self._block.adapter, self._call_on_loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        script = self._block.end() if error is None else self._block.give_up()
        play_sync(script, self._block.adapter, self._call_on_loop)


class AsyncTransaction(TransactionBase):
    """A block on the event loop.

    A synchronous connection (sqlite3, say) is used on the loop's own thread, so each of its statements blocks the
    loop. Such blocks run one after the other: two at once could wait for each other's locks on the one thread that
    would have to release them.
    """

    def __init__(self, block: Block, turn: asyncio.Lock | None) -> None:
        super().__init__(block)
        self._turn = turn

    async def prepare(self) -> None:
        """With `prepare='early'`: send what was added to the broker as half messages, then begin locally."""
        await play_async(self._block.prepare_early(), self._block.adapter)

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
        script = self._block.end() if error is None else self._block.give_up()
        try:
            await play_async(script, self._block.adapter)
        finally:
            self._release()

    def _release(self) -> None:
        if self._turn is not None:
            self._turn.release()
