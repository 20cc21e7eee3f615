"""A store that is ours: opened after the claim, worked on by a broker, closed before it is released or because it is
lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tallystick.broker.broker import Broker
from tallystick.broker.threads import on_a_thread
from tallystick.core.errors import Moved, StorageFailed, StorageFull
from tallystick.store.kv.engine import EngineFailed, Superseded
from tallystick.store.protocol import Store
from tallystick.store.shared.registry import Holding

log = logging.getLogger("tallystick.broker.cluster")

TRY_AGAIN_SECONDS = 0.25
CALM_SECONDS = 5.0  # before a store that cannot be worked on is given back, to be claimed by the next

OpenStore = Callable[[Holding, int], Store]  # the store under the epoch that was claimed; blocks


class Tenure:
    """Made inside a running event loop. After `end()` nothing new is taken; once `ended`, nothing more is written."""

    def __init__(
        self,
        holding: Holding,
        epoch: int,
        open_store: OpenStore,
        make_broker: Callable[[Store], Broker],
        on_ended: Callable[[], None],
    ) -> None:
        self.holding, self.epoch = holding, epoch
        self.broker: Broker | None = None
        self.ended = False
        self.trouble = ""  # why it cannot be opened, as the last try has found
        self._open_store, self._make_broker, self._on_ended = open_store, make_broker, on_ended
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._live(), name=f"store {holding.id}")

    @property
    def ending(self) -> bool:
        return self._end.is_set()

    def end(self) -> None:
        """Who waits and who comes is told to ask elsewhere; what was accepted is finished, if that can still be."""
        self._end.set()
        if self.broker is not None:
            self.broker.drain(Moved)

    async def _live(self) -> None:
        try:
            store = await self._opened()
            if store is not None:
                self.broker = self._make_broker(store)
                await self._end.wait()
                await self.broker.close()
        except Exception:
            log.exception("the broker of store %s has stopped", self.holding.id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALM_SECONDS):
                    await self._end.wait()
        finally:
            self.ended = True
            self._on_ended()

    async def _opened(self) -> Store | None:
        """Tries until it is open, or nobody wants it any more."""
        store: Store | None = None
        while store is None and not self.ending:
            try:
                store = await on_a_thread(lambda: self._open_store(self.holding, self.epoch), "open store")
            except Superseded:
                log.info("store %s went to somebody else before it was open", self.holding.id)
                await self._end.wait()
            except (EngineFailed, StorageFailed, StorageFull) as error:
                if str(error) != self.trouble:  # once, and not four times a second for as long as it lasts
                    self.trouble = str(error)
                    log.warning("store %s cannot be opened yet: %s", self.holding.id, self.trouble)
                await asyncio.sleep(TRY_AGAIN_SECONDS)
        if store is not None and self.ending:
            await on_a_thread(store.close, "close store")
            return None
        return store
