"""The engine's clock: the one that all owners of a store have in common."""

from __future__ import annotations

from tallystick.core.clock import Clock, SystemClock


class EngineClock(SystemClock):
    """Reckoned from a monotonic clock of our own and what each look tells, so that a lease or a delay means the same
    to every owner. Like the machine's clock it is never seen to run backwards."""

    def __init__(self, own: Clock | None = None) -> None:
        super().__init__()
        self._own = own or SystemClock()
        self._ahead: int | None = None  # of our monotonic clock

    def learn(self, now_ms: int, asked_at: int, answered_at: int) -> None:
        """The engine's clock stood so at some moment between these two of ours. What is believed changes only if it
        cannot be right: so a slow answer, which tells little, does no harm."""
        least, most = now_ms - answered_at, now_ms - asked_at
        believed = (least + most) // 2 if self._ahead is None else self._ahead
        self._ahead = min(max(believed, least), most)

    def reading(self) -> int:
        if self._ahead is None:
            raise RuntimeError("nothing was learnt of the engine's clock yet")
        return self._own.elapsed_ms() + self._ahead

    def elapsed_ms(self) -> int:
        return self._own.elapsed_ms()
