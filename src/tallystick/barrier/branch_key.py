"""Which effect a barrier guards: dtm's four names, which are unique together in a table, a collection or a key."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick.barrier.names import checked_text
from tallystick.barrier.operations.branch_barrier import UNDOES
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid

MESSAGE_BRANCH = "00"
MESSAGE_OP = "msg"
FIRST_BARRIER = "01"


@dataclass(frozen=True, slots=True)
class Branch:
    """One effect. By default the local transaction of a two-phase message, which check-backs ask for."""

    gid: str
    branch_id: str = MESSAGE_BRANCH
    op: str = MESSAGE_OP
    barrier_id: str = FIRST_BARRIER

    def __post_init__(self) -> None:
        check_gid(self.gid)
        checked_text(self.branch_id, "branch_id")
        checked_text(self.op, "op", 45)
        checked_text(self.barrier_id, "barrier_id", 45)

    @property
    def origin(self) -> Branch | None:
        """The effect that this one takes back, or None."""
        origin = UNDOES.get(self.op)
        return None if origin is None else replace(self, op=origin)

    @property
    def is_message(self) -> bool:
        """Whether this is the local transaction of a message: of all effects, the one that has an outcome."""
        return self.op == MESSAGE_OP

    def require_message(self) -> None:
        """Only one row or key is the truth of an outcome."""
        if (self.branch_id, self.op, self.barrier_id) != (MESSAGE_BRANCH, MESSAGE_OP, FIRST_BARRIER):
            raise InvalidRequest(
                f"decide() is for the local transaction of a message (branch_id '00', op 'msg', barrier_id '01'), "
                f"not for branch_id {self.branch_id!r}, op {self.op!r}, barrier_id {self.barrier_id!r}",
                field="op",
            )
