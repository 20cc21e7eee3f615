"""The ways in which messages are sent, and what each promises."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Mode = Literal["level-0", "level-1", "level-2", "check-back", "outbox", "consumer-dedup"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Promise(NamedTuple):
    """What may become of a message; whatever is not allowed here is a broken promise."""

    text: str
    transactional: bool = True
    may_lose: bool = False
    may_double: bool = False


PROMISES: dict[Mode, Promise] = {
    "level-0": Promise("at most once", transactional=False, may_lose=True),
    "level-1": Promise("at least once", transactional=False, may_double=True),
    "level-2": Promise("exactly once", transactional=False),
    "check-back": Promise("with its change, exactly once"),
    "outbox": Promise("with its change, exactly once"),
    "consumer-dedup": Promise("with its change, exactly once"),
}
