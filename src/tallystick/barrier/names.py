"""The names of the tables, and the rules for every name that reaches the database.

Lengths are checked here because a database without strict mode cuts a long value short in silence, and two
transactions would then share one barrier row.
"""

from __future__ import annotations

import re

from tallystick.barrier.errors import InvalidTableName
from tallystick.core.errors import InvalidRequest

BARRIER_TABLE = "tallystick_barrier"
DIGEST_TABLE = "tallystick_digest"
INBOX_TABLE = "tallystick_inbox"
OFFSET_TABLE = "tallystick_offset"
OUTBOX_TABLE = "tallystick_outbox"
PREPARED_TABLE = "tallystick_prepared"

_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)


def checked_table(table: str) -> str:
    """A table name that may be put into SQL text: `name` or `schema.name`, and nothing else."""
    if not _TABLE.fullmatch(table):
        raise InvalidTableName(
            f"{table[:140]!r} is not a valid table name: use letters, digits and underscores, "
            "with at most one schema before a dot, as in dtm_barrier.barrier",
            field="table",
        )
    return table


def checked_text(value: str, field: str, longest: int = 128) -> str:
    """A value that fits its column exactly as it is."""
    if not 1 <= len(value) <= longest or "\x00" in value:
        raise InvalidRequest(
            f"{field} {value[:140]!r} must have 1 to {longest} characters, none of them NUL", field=field
        )
    return value
