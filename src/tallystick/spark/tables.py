"""`option("table", ...)`: the broker's own state as DataFrames.

Here are the tables' columns, the options that each of them takes, and how one is read: in parallel, page by page, each
page once whatever becomes of the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from pyspark.sql.datasource import DataSourceReader, InputPartition
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

from tallystick.core.errors import BrokerUnavailable
from tallystick.core.names import check_name
from tallystick.credentials.credentials import Credentials
from tallystick.link import Link
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.options import Given, refused
from tallystick.spark.schema import Shape

if TYPE_CHECKING:
    import pyarrow as pa

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
PAGE_ROWS = 20_000
_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.2  # after an answer that broke off; to wait for a broker that is away is the link's business


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
    "audit": _Table("at timestamp, who string, kind string, source string, action string, subject string", ()),
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
    credentials: Credentials


def parse_settings(options: Mapping[str, str]) -> TableSettings:
    table = _table_of(options)
    given = Given(options, (*_COMMON, *TABLES[table].filters), f"table {table!r}")
    given.check_path("table")
    group = given.text("group") or None
    return TableSettings(
        url=given.url(),
        table=table,
        state=given.word("state", TABLES[table].states, "") if given.text("state") else None,
        group=None if group is None else check_name(group, "group"),
        older_than_ms=round(given.seconds("olderThan", "0") * 1000) if given.text("olderThan") else None,
        partitions=given.number("minPartitions") or DEFAULT_PARTITIONS,
        retry=given.seconds("retryTimeout", "2m"),
        credentials=given.credentials(),
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


# --- reading ----------------------------------------------------------------------------------------------------


class TablePartition(InputPartition):
    """The rows between two places of a table."""

    def __init__(self, after: str | None, before: str | None) -> None:
        super().__init__((after, before))
        self.after, self.before = after, before


class TableReader(DataSourceReader):
    """One table, as it is while it is read: the pages are of different moments."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = parse_settings(options)
        self._shape = Shape(schema, columns_of(self._settings.table), f"table {self._settings.table!r}")

    def partitions(self) -> list[InputPartition]:
        settings = self._settings
        with _link(settings) as link:
            found = link.get("tables", settings.table, "splits", n=settings.partitions, state=settings.state)
        return [TablePartition(split["after"], split["before"]) for split in found["splits"]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, TablePartition):
            return  # Spark's own, for a table without partitions
        for page in read_pages(self._settings, self._shape.needed, partition.after, partition.before):
            yield from map(self._shape.fit, page)


def read_pages(
    settings: TableSettings, columns: Sequence[str], after: str | None, before: str | None
) -> Iterator[list[pa.RecordBatch]]:
    """The rows between two places of a table, page by page: the broker makes the next while this one is used."""
    with _link(settings) as link, ThreadPoolExecutor(1) as ahead:
        next_one = ahead.submit(_page, link, settings, columns, after, before)
        while True:
            page, after = next_one.result()
            if after is not None:
                next_one = ahead.submit(_page, link, settings, columns, after, before)
            yield page
            if after is None:
                return


def _link(settings: TableSettings) -> BrokersLink:
    return BrokersLink(
        settings.url,
        timeout=_TIMEOUT_SECONDS,
        patience=settings.retry,
        named="option 'url'",
        credentials=settings.credentials,
    )


def _page(
    link: Link, settings: TableSettings, columns: Sequence[str], after: str | None, before: str | None
) -> tuple[list[pa.RecordBatch], str | None]:
    """One page, and where the next one begins. Nothing of a page is handed on before the whole of it is here, so a
    page that broke off is asked for again and no row comes twice."""
    deadline = time.monotonic() + settings.retry
    while True:
        try:
            return _ask(link, settings, columns, after, before)
        except BrokerUnavailable as error:
            if not error.retryable or time.monotonic() + _PAUSE_SECONDS > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def _ask(
    link: Link, settings: TableSettings, columns: Sequence[str], after: str | None, before: str | None
) -> tuple[list[pa.RecordBatch], str | None]:
    import pyarrow as pa

    query = {"limit": PAGE_ROWS, "after": after, "before": before, "columns": ",".join(columns) or None}
    wanted = {"state": settings.state, "group": settings.group, "older_than_ms": settings.older_than_ms}
    with link.arrow("tables", settings.table, **query, **wanted) as answer:
        try:
            with pa.ipc.open_stream(answer.read()) as stream:
                return list(stream), answer.headers.get("Tallystick-Next")
        except pa.ArrowInvalid as error:
            raise BrokerUnavailable(f"the answer of {link.url} broke off ({error})") from error
