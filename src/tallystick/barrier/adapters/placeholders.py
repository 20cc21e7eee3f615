"""Placeholders as drivers want them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tallystick.barrier.statement import Statement

_NAMED = re.compile(r"(?<![:\w]):(\w+)")
_RETURNS_ROWS = re.compile(r"\s*select\b|.*\breturning\b", re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=512)
def percent_style(sql: str) -> str:
    """`:name` as `%(name)s`, for psycopg and MySQL's drivers. None of our statements for them holds a percent sign."""
    return _NAMED.sub(r"%(\1)s", sql)


class Numbered(NamedTuple):
    """A statement with `$1`, and the names of its values in their order."""

    sql: str
    names: tuple[str, ...]
    returns_rows: bool


@lru_cache(maxsize=512)
def numbered_style(sql: str) -> Numbered:
    """`:name` as `$1`, for asyncpg; a name that comes again has its number again."""
    names = tuple(dict.fromkeys(_NAMED.findall(sql)))
    text = _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    return Numbered(text, names, _RETURNS_ROWS.match(sql) is not None)


def without_bytes(statement: Statement) -> Statement:
    """The same with its bytes bound as hexadecimal text, for a driver that cannot bind bytes (aiomysql 0.3.2)."""
    binary = {name: value.hex() for name, value in statement.params.items() if isinstance(value, bytes)}
    if not binary:
        return statement
    sql = _NAMED.sub(lambda found: f"unhex({found[0]})" if found[1] in binary else found[0], statement.sql)
    return Statement(sql, {**statement.params, **binary}, statement.returns_nothing)


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
