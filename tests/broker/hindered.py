"""A shared server in memory with a hand on it: slow, silent or away; and deaf to whoever asks on the event loop."""

from __future__ import annotations

import threading
import time

from tallystick.store.kv.engine import Area, Changes, Found, Wanted
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.memory import MemoryCluster, MemoryServer
from tallystick.store.shared.opening import SharedStore
from tallystick.store.shared.server import Fence, ServerAway


class HinderedServer(MemoryServer):
    """What it is asked on the thread that made it, a test's event loop, it takes for a mistake."""

    def __init__(self) -> None:
        super().__init__(MemoryCluster(), 0)
        self.seconds = 0.0  # for each answer
        self.away = ""  # why nothing is answered
        self.speaks = threading.Event()
        self.speaks.set()
        self._loop_thread: int | None = None

    def opened(self) -> SharedStore:
        """A store on it, opened where a cluster would not: on this thread. From now on nobody may ask here."""
        store = SharedStore(self, self.claim("test").epoch, StoreSettings())
        self._loop_thread = threading.get_ident()
        return store

    def _meets(self) -> None:
        assert threading.get_ident() != self._loop_thread, "the server was asked on the event loop"
        time.sleep(self.seconds)
        assert self.speaks.wait(60)
        if self.away:
            raise ServerAway(self.away)

    def fence(self) -> Fence | None:
        self._meets()
        return super().fence()

    def look_up(self, wanted: Wanted) -> Found:
        self._meets()
        return super().look_up(wanted)

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        self._meets()
        return super().page(area, start, end, limit, max_bytes, backwards)

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        self._meets()
        return super().apply(epoch, unit, changes)
