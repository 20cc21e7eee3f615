"""How many messages and calls a transaction may have, compared before they are encoded."""

from __future__ import annotations

from tallystick.core.errors import TooLarge
from tallystick.core.limits import Limits

DEFAULT_LIMITS = Limits()
"""What a broker takes unless its operator says otherwise."""

COUNT_EVERY = 100
"""A block compares its counts again after so many more; fewer are left to the broker."""


def check_count(what: str, count: int, most: int | None) -> None:
    """TooLarge if there are more than `most`; None: no limit is known."""
    if most is not None and count > most:
        raise TooLarge(
            f"{what}: a transaction holds at most {most} {what} (got {count} or more). Send them in several "
            "transactions, or raise max_transaction_messages at the broker.",
            field=what,
        )
