"""A cluster in memory: nothing survives the process. For tests of what stands on shared stores."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from tallystick.core.clock import SystemClock
from tallystick.core.ids import new_store_id
from tallystick.store.shared.registry import Holding, Member, Seen, wrong_count


class MemoryRegistry:
    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or SystemClock().now_ms
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._holdings: list[Holding] = []

    def make(self, count: int) -> None:
        with self._lock:
            if self._holdings and len(self._holdings) != count:
                raise wrong_count(len(self._holdings), count)
            if not self._holdings:
                self._holdings = [Holding(number, new_store_id(), 0, "") for number in range(count)]

    def look(self, me: Member) -> Seen:
        with self._lock:
            self._members[me.id] = me
            return Seen(tuple(self._members.values()), tuple(self._holdings), self._now_ms())

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        with self._lock:
            if self._holdings[number].epoch != expected_epoch:
                return None
            self._change(number, epoch=expected_epoch + 1, owner=owner)
            return expected_epoch + 1

    def release(self, number: int, epoch: int) -> None:
        with self._lock:
            if self._holdings[number].epoch == epoch:
                self._change(number, owner="")

    def forget(self, member_id: str) -> None:
        with self._lock:
            self._members.pop(member_id, None)

    def _change(self, number: int, **fields: int | str) -> None:
        self._holdings[number] = msgspec.structs.replace(self._holdings[number], **fields)
