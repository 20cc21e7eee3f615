"""The times that the rules go by, all of them on the broker's clock, and how far back each side can be compared."""

from __future__ import annotations

from msgspec import Struct

BEGINNING = -(2**62)
END = 2**62
# Ages are compared across clocks that were set by each other a moment ago; this covers the way between them, and a
# database that keeps times in whole seconds.
MARGIN_MS = 10_000


class Bounds(Struct, frozen=True, kw_only=True):
    """`now_ms` is when reading began. From `..._from` on, rows of a side cannot have been cleaned up or expired:

    * `remembered_from`: a transaction that was resolved since then is still known to the broker;
    * `log_from`: a message that was stored since then is still in the log (or in the archive that is read with it);
    * `barrier_from`: a barrier row that was written since then is still there;
    * `applied_from`: by consumer, the same for inbox rows.
    """

    now_ms: int
    grace_ms: int = 0
    since_ms: int = BEGINNING
    until_ms: int = END
    late_after_ms: int | None = None
    remembered_from: int = BEGINNING
    log_from: int = BEGINNING
    barrier_from: int = BEGINNING
    applied_from: tuple[int, ...] = ()
    whole_log: bool = True
    brokers: bool = True
    producers: bool = True
    effects: tuple[bool, ...] = ()  # by consumer: its effects are given
    digests: bool = False  # values were read, to be compared with what consumers have kept of them
    keeps_offset: tuple[bool, ...] = ()  # by consumer: it has no inbox but an offset of its own

    @property
    def groups(self) -> int:
        return len(self.applied_from)
