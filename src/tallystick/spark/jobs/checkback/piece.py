"""What a task does with its piece of the pending transactions: read them, find out whose they are, decide ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct, field

from tallystick.core.wire import Split
from tallystick.spark.jobs.checkback.decider import BulkDecider
from tallystick.spark.jobs.checkback.producers import KnownDatabase, owner_of
from tallystick.spark.jobs.checkback.settings import CheckbackSettings
from tallystick.spark.tables import TableSettings, read_pages

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED = ("gid", "state", "group", "checks", "next_check_at", "check_via", "check_target", "source")
# Transactions in memory at a time. They are decided in order of gid, so that both the database and the broker find
# what they look for side by side, not all over their disks: the more at a time, the closer together.
_ROWS = 250_000
_WHOSE = ("source", "check_via", "check_target")


class PieceSummary(Struct):
    """What came of a piece: `decided` by number of the database and outcome, `foreign` by what they say of theirs."""

    pending: int = 0
    not_due: int = 0
    decided: Counter[tuple[int, str]] = field(default_factory=Counter)
    foreign: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, other: PieceSummary) -> None:
        self.pending += other.pending
        self.not_due += other.not_due
        self.decided += other.decided
        self.foreign += other.foreign


@dataclass(frozen=True)
class PieceWork:
    """It travels to the executors. `now_ms` is the broker's clock when the job began."""

    settings: CheckbackSettings
    databases: tuple[KnownDatabase, ...]
    now_ms: int

    def __call__(self, piece: Split) -> PieceSummary:
        summary = PieceSummary()
        for rows in self._read(piece):
            summary.add(self._sort_out(rows))
        return summary

    def table(self) -> TableSettings:
        settings = self.settings
        return TableSettings(
            url=settings.url,
            table="transactions",
            state=settings.state,
            group=settings.groups[0] if len(settings.groups) == 1 else None,
            older_than_ms=settings.older_than_ms,
            partitions=0,
            retry=settings.retry,
            credentials=settings.credentials,
        )

    def _read(self, piece: Split) -> Iterator[pa.Table]:
        """The transactions of the piece, many at a time, each of them once in a table."""
        import pyarrow as pa

        pages: list[pa.RecordBatch] = []
        for page in read_pages(self.table(), _NEEDED, piece.after, piece.before):
            pages.extend(page)
            if sum(one.num_rows for one in pages) >= _ROWS:
                yield _in_order(pa.Table.from_batches(pages))
                pages = []
        if pages:
            yield _in_order(pa.Table.from_batches(pages))

    def _sort_out(self, rows: pa.Table) -> PieceSummary:
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(self.settings.groups) > 1:
            rows = rows.filter(pc.is_in(rows["group"], pa.array(self.settings.groups)))
        summary = PieceSummary(pending=rows.num_rows)
        owners, foreign = self._owners(rows)
        summary.foreign = foreign
        # A producer may ask for more time than others before the first check: its transaction may take that long.
        wait_until = pc.cast(rows["next_check_at"], pa.int64())
        waits = pc.and_(pc.equal(rows["checks"], 0), pc.greater(wait_until, self.now_ms))
        due = pc.or_(pc.equal(rows["state"], "parked"), pc.invert(pc.fill_null(waits, False)))
        summary.not_due = pc.sum(pc.and_(pc.is_valid(owners), pc.invert(due))).as_py() or 0
        for number, known in enumerate(self.databases):
            mine = rows["gid"].filter(pc.fill_null(pc.and_(pc.equal(owners, number), due), False)).to_pylist()
            for outcome, count in self._decider(known).run(mine).items():
                summary.decided[number, outcome] += count
        return summary

    def _owners(self, rows: pa.Table) -> tuple[pa.Array, Counter[tuple[str, str, str]]]:
        """The number of the database that each belongs to, and what those say that belong to none of them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # There are few answers to the question whose it is: each is looked at once, however many rows give it.
        said = [pc.fill_null(rows[name], "") for name in _WHOSE]
        joined = pc.binary_join_element_wise(*said, "\0").combine_chunks().dictionary_encode()
        names = [tuple(one.split("\0")) for one in joined.dictionary.to_pylist()]
        owners = [owner_of(self.databases, self.settings.sourceless, *one) for one in names]
        counts = Counter({names[one["values"]]: one["counts"] for one in joined.indices.value_counts().to_pylist()})
        foreign = Counter({name: counts[name] for name, owner in zip(names, owners, strict=True) if owner is None})
        return pa.array(owners, pa.int32()).take(joined.indices), foreign

    def _decider(self, known: KnownDatabase) -> BulkDecider:
        settings = self.settings
        return BulkDecider(
            url=settings.url,
            database=known.database,
            table=settings.table,
            wait=settings.wait,
            batch=settings.batch,
            retry=settings.retry,
            dry_run=settings.dry_run,
            credentials=settings.credentials,
        )


def _in_order(rows: pa.Table) -> pa.Table:
    """By gid. One that was checked while it was read may be there twice: it is taken once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = rows.take(pc.sort_indices(rows["gid"]))
    if rows.num_rows < 2:
        return rows
    gids = rows["gid"].combine_chunks()
    return rows.filter(pa.concat_arrays([pa.array([True]), pc.not_equal(gids[1:], gids[:-1])]))
