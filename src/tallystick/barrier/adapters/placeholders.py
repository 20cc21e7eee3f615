"""Placeholders as drivers want them."""

from __future__ import annotations

import re
from functools import lru_cache

from tallystick.barrier.statement import Statement

_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@lru_cache(maxsize=512)
def percent_style(sql: str) -> str:
    """`:name` as `%(name)s`, for psycopg and MySQL's drivers. None of our statements for them holds a percent sign."""
    return _NAMED.sub(r"%(\1)s", sql)


def without_bytes(statement: Statement) -> Statement:
    """The same with its bytes bound as hexadecimal text, for a driver that cannot bind bytes (aiomysql 0.3.2)."""
    binary = {name: value.hex() for name, value in statement.params.items() if isinstance(value, bytes)}
    if not binary:
        return statement
    sql = _NAMED.sub(lambda found: f"unhex({found[0]})" if found[1] in binary else found[0], statement.sql)
    return Statement(sql, {**statement.params, **binary}, statement.returns_nothing)
