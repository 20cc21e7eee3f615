"""What a task does: it finds the outcomes of its share of the transactions and tells the broker.

Everything here may happen twice, or half: an outcome is told only after it is durable in the producer's database,
and telling it again changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.barrier import BarrierError, adapt_sync, decide_many, known_outcomes, run_sync
from tallystick.barrier.queries import OUTCOMES
from tallystick.core.errors import TallystickError
from tallystick.core.ops import Outcome
from tallystick.link import Link
from tallystick.spark.jdbc import Database

if TYPE_CHECKING:
    import pyarrow as pa

COUNTED = "way string, outcome string, count bigint"
_BROKER_TIMEOUT = 60.0
# A database may be restarted while a job of some minutes runs.
_TRIES = 4
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Decider:
    """For one database. It travels to the executors."""

    url: str
    database: Database
    table: str
    wait: float
    batch: int
    retry: float
    dry_run: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """From rows of (gid, reason) to counts of (way, outcome)."""
        import pyarrow as pa

        with Link(self.url, timeout=_BROKER_TIMEOUT, patience=self.retry) as broker:
            for batch in batches:
                for start in range(0, batch.num_rows, self.batch):
                    counts = self._decide(broker, batch.slice(start, self.batch))
                    ways, outcomes = zip(*counts, strict=True)
                    numbers = pa.array(counts.values(), pa.int64())
                    yield pa.record_batch([ways, outcomes, numbers], ["way", "outcome", "count"])

    def _decide(self, broker: Link, rows: pa.RecordBatch) -> Counter[tuple[str, str]]:
        reasons = zip(rows.column("gid").to_pylist(), rows.column("reason").to_pylist(), strict=True)
        joined: dict[str, Outcome] = {}
        asked: list[str] = []
        for gid, reason in reasons:
            if reason in OUTCOMES:
                joined[gid] = OUTCOMES[reason]
            else:
                asked.append(gid)
        checked = self._ask_patiently(asked) if asked else {}
        outcomes = {**joined, **{gid: said for gid, said in checked.items() if said in OUTCOMES.values()}}
        if outcomes and not self.dry_run:
            # Those that are unknown are left out: to say so would count as a check, and might park them.
            broker.post("checks", "answers", answers=outcomes)
        counts: Counter[tuple[str, str]] = Counter(("join", said) for said in joined.values())
        counts.update(("check", said) for said in checked.values())
        return counts

    def _ask_patiently(self, gids: list[str]) -> dict[str, str]:
        tries = 0
        while True:
            try:
                return self._ask(gids)
            except BarrierError:
                raise
            except Exception as error:
                tries += 1
                if tries == _TRIES:
                    said = " ".join(str(error).split()) or type(error).__name__
                    raise TallystickError(f"{self.database.named}: {said}") from error
            time.sleep(_PAUSE_SECONDS * tries)

    def _ask(self, gids: list[str]) -> dict[str, str]:
        connection: Any = self.database.connect(self.wait)
        try:
            adapter = adapt_sync(connection)
            if self.dry_run:
                known = run_sync(adapter, known_outcomes(gids, table=self.table))
                return {gid: known.get(gid, "open") for gid in gids}
            decided = run_sync(adapter, decide_many(gids, wait=self.wait, table=self.table))
        finally:
            connection.close()
        return {gid: "unknown" if said == "running" else said for gid, said in decided.items()}
