"""The columns of the broker's tables, and the options that each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tallystick.core.names import check_name
from tallystick.spark.options import Given, refused

DEFAULT_PARTITIONS = 8
_STATES = ("prepared", "parked", "pending", "committed", "rolled_back")
_COMMON = ("url", "table", "minPartitions", "retryTimeout")

# A question mark where a column may be null.
_KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map": MapType(StringType(), StringType()),
}


class _Table(NamedTuple):
    columns: str
    filters: tuple[str, ...]
    states: tuple[str, ...] = ()


TABLES = {
    "transactions": _Table(
        "gid string, state string, group string?, messages int, created_at timestamp, resolved_at timestamp?, "
        "resolved_by string?, checks int, next_check_at timestamp?, last_error string?, check_via string?, "
        "check_target string?, source string?",
        ("state", "group", "olderThan"),
        _STATES,
    ),
    "half": _Table(
        "gid string, sequence int, state string, group string, topic string, key string?, value binary, headers map?, "
        "tag string?, deliver_at timestamp?, created_at timestamp, check_via string?, check_target string?, "
        "source string?",
        ("state", "group", "olderThan"),
        ("prepared", "parked", "pending"),
    ),
    "op": _Table("sequence bigint, index int, at timestamp, gid string, outcome string, by string", ()),
    "offsets": _Table(
        "group string, topic string, queue int, offset bigint, start bigint, end bigint, lag bigint, leased int",
        ("group",),
    ),
    "delayed": _Table("gid string, sequence int, topic string, deliver_at timestamp", ()),
    "calls": _Table(
        "gid string, index int, branch string, url string, protocol string, state string, attempts int, "
        "next_at timestamp?, last_error string?, finished_at timestamp?, created_at timestamp, size int",
        ("state", "olderThan"),
        ("waiting", "parked", "done", "stopped", "dropped"),
    ),
}


class TableSettings(Struct, frozen=True, kw_only=True):
    """What the user wants to read. It travels to the executors with the reader."""

    url: str
    table: str
    state: str | None
    group: str | None
    older_than_ms: int | None
    partitions: int
    retry: float


def parse_settings(options: Mapping[str, str]) -> TableSettings:
    table = _table_of(options)
    given = Given(options, (*_COMMON, *TABLES[table].filters), f"table {table!r}")
    group = given.text("group") or None
    return TableSettings(
        url=given.url(),
        table=table,
        state=given.word("state", TABLES[table].states, "") if given.text("state") else None,
        group=None if group is None else check_name(group, "group"),
        older_than_ms=round(given.seconds("olderThan", "0") * 1000) if given.text("olderThan") else None,
        partitions=given.number("minPartitions") or DEFAULT_PARTITIONS,
        retry=given.seconds("retryTimeout", "2m"),
    )


def _table_of(options: Mapping[str, str]) -> str:
    table = next((value for name, value in options.items() if name.lower() == "table"), "").strip()
    if table not in TABLES:
        raise refused("table", f"there is no table {table[:80]!r}; the tables are {', '.join(TABLES)}")
    return table


def table_schema(table: str, options: Mapping[str, str]) -> StructType:
    """What `load()` shows. The options are looked at here as well: a wrong one is told before anything is read."""
    parse_settings({**options, "table": table})
    return columns_of(table)


def columns_of(table: str) -> StructType:
    pairs = [column.split() for column in TABLES[table].columns.split(", ")]
    return StructType([StructField(name, _KINDS[kind.rstrip("?")], kind.endswith("?")) for name, kind in pairs])
