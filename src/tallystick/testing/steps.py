"""The steps of a block at which a process can die."""

from __future__ import annotations

from typing import Literal, get_args

Step = Literal[
    "before begin",
    "after begin",
    "before prepare",
    "after mark",
    "after prepare",
    "before commit",
    "after commit",
    "answer lost",
]

STEPS: tuple[Step, ...] = get_args(Step)
"""All of them, in their order, for `@pytest.mark.parametrize("step", STEPS)`."""

MEANINGS: dict[Step, str] = {
    "before begin": "before the local transaction has begun",
    "after begin": "when it has begun, before the code of the block runs",
    "before prepare": "after the code of the block, before the broker and the barrier table hear of it",
    "after mark": "when the barrier row, or the outbox row, is in the local transaction",
    "after prepare": "when the broker has the half messages",
    "before commit": "when all is ready and the local COMMIT is next",
    "after commit": "when the local commit is durable and the broker does not know",
    "answer lost": "when the broker has been told, before its answer arrives",
}
"""When the process dies. A step that a block does not have (an outbox needs no prepare) is the moment before its next
one."""
