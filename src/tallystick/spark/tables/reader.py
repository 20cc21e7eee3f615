"""Reading one of the broker's tables: in parallel, page by page, each page once whatever becomes of the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tallystick.core.errors import BrokerUnavailable
from tallystick.link import Link
from tallystick.spark.schema import Shape
from tallystick.spark.tables.schemas import TableSettings, columns_of, parse_settings

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS = 20_000
_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.2  # after an answer that broke off; to wait for a broker that is away is the link's business


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
        after = partition.after
        with _link(self._settings) as link:
            while True:
                page, after = _page(link, self._settings, after, partition.before)
                yield from map(self._shape.fit, page)
                if after is None:
                    return


def _link(settings: TableSettings) -> Link:
    return Link(settings.url, timeout=_TIMEOUT_SECONDS, patience=settings.retry, named="option 'url'")


def _page(
    link: Link, settings: TableSettings, after: str | None, before: str | None
) -> tuple[list[pa.RecordBatch], str | None]:
    """One page, and where the next one begins. Nothing of a page is handed on before the whole of it is here, so a
    page that broke off is asked for again and no row comes twice."""
    deadline = time.monotonic() + settings.retry
    while True:
        try:
            return _ask(link, settings, after, before)
        except BrokerUnavailable:
            if time.monotonic() + _PAUSE_SECONDS > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def _ask(
    link: Link, settings: TableSettings, after: str | None, before: str | None
) -> tuple[list[pa.RecordBatch], str | None]:
    import pyarrow as pa

    query = {"limit": PAGE_ROWS, "after": after, "before": before}
    wanted = {"state": settings.state, "group": settings.group, "older_than_ms": settings.older_than_ms}
    with link.arrow("tables", settings.table, **query, **wanted) as answer:
        try:
            with pa.ipc.open_stream(answer.read()) as stream:
                return list(stream), answer.headers.get("Tallystick-Next")
        except pa.ArrowInvalid as error:
            raise BrokerUnavailable(f"the answer of {link.url} broke off ({error})") from error
