"""Placeholders as drivers want them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

_NAMED = re.compile(r"(?<![:\w]):(\w+)")


@lru_cache(maxsize=512)
def percent_style(sql: str) -> str:
    """`:name` as `%(name)s`, for psycopg and PyMySQL. None of our statements for them holds a percent sign."""
    return _NAMED.sub(r"%(\1)s", sql)


@lru_cache(maxsize=512)
def _named_in_order(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text with its percent signs doubled, and the names of its placeholders in the order of their coming."""
    return sql.replace("%", "%%"), tuple(_NAMED.findall(sql))


def positional_style(sql: str, params: Mapping[str, Any], *, blob: str = "%s") -> tuple[str, Sequence[Any] | None]:
    """`:name` as `%s`, and the values in their order, as every driver of Django takes them; `blob` stands for bytes."""
    if not params:
        return sql, None
    text, names = _named_in_order(sql)
    values = [params[name] for name in names]
    return _NAMED.sub(lambda found: blob if isinstance(params[found[1]], bytes) else "%s", text), values
