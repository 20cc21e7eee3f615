"""What the barrier on Redis says; Redis' own errors are never an outcome and reach the caller as they are."""

from __future__ import annotations

from tallystick.barrier.errors import BarrierError


class Refused(BarrierError):
    """The effect said no: nothing was changed and nothing marked. In dtm's words, FAILURE."""

    code = "refused"


class NotEnough(Refused):
    """A counter is missing, or holds less than is to be taken; nothing was changed and nothing marked."""

    code = "not_enough"

    def __init__(self, key: str, amount: int) -> None:
        self.key = key
        lack = f"holds less than {-amount} or is missing" if amount < 0 else "is missing"
        super().__init__(f"the counter {key} {lack}; nothing was changed")


class UnknownMark(BarrierError):
    """A barrier key holds something that neither Tallystick nor dtm writes, so it tells nothing."""

    code = "unknown_mark"


class KeysApart(BarrierError):
    """In a Redis Cluster all keys of a call must be on one node: they need one hash tag."""

    code = "keys_apart"
