"""Placeholders as drivers want them."""

from __future__ import annotations

import re
from functools import lru_cache

_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@lru_cache(maxsize=512)
def percent_style(sql: str) -> str:
    """`:name` as `%(name)s`, for psycopg and PyMySQL. None of our statements for them holds a percent sign."""
    return _NAMED.sub(r"%(\1)s", sql)
