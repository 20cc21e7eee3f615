"""Findings: one row for each thing that is wrong, with words for a human."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from tallystick.spark.jobs.reconcile.bounds import Bounds
from tallystick.spark.jobs.reconcile.kinds import CODES
from tallystick.spark.jobs.reconcile.rules import is_plain
from tallystick.spark.jobs.reconcile.traces import OUTCOME_COMMITTED, OUTCOME_ROLLED_BACK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (
    *("kind", "code", "side", "gid", "message_id", "group", "topic", "queue", "offset", "messages"),
    *("at", "age_ms", "explanation"),
)


def findings(judged: DataFrame, bounds: Bounds, groups: list[str], places: DataFrame) -> DataFrame:
    """From the rows of `compare`; `places` has the names of the queues by their number."""
    codes = ["t_code", "m_code", *[f"c_code_{number}" for number in range(bounds.groups)]]
    wrong = judged.filter(F.coalesce(*codes).isNotNull())
    possible = [_of_transaction(), _of_message("m_code", None, F.col("logged_at"))]
    for number, group in enumerate(groups):
        at = F.coalesce(F.col("logged_at"), F.col(f"applied_at_{number}"))
        possible.append(_of_message(f"c_code_{number}", group, at))
    single = wrong.select("gid", F.explode(F.array(*possible)).alias("one")).select("gid", "one.*")
    named = single.filter(F.col("code").isNotNull()).join(F.broadcast(places), "place", "left")
    return named.withColumns(
        {
            "kind": _by_code(0),
            "side": _by_code(1),
            "at": F.timestamp_millis("at_ms"),
            "age_ms": F.lit(bounds.now_ms) - F.col("at_ms"),
            "explanation": F.concat_ws("; ", _by_code(2), F.col("detail")),
        }
    ).select(*COLUMNS)


def _by_code(part: int) -> Column:
    texts = [F.lit(text) for code, meaning in CODES.items() for text in (code, meaning[part])]
    return F.create_map(*texts)[F.col("code")]


def _finding(**fields: Column) -> Column:
    kinds = {
        "code": "string",
        "message_id": "string",
        "group": "string",
        "place": "int",
        "offset": "bigint",
        "messages": "bigint",
        "at_ms": "bigint",
        "detail": "string",
    }
    return F.struct(*[fields.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()])


def _of_transaction() -> Column:
    producer = (
        F.when(F.col("g_outcome") == OUTCOME_COMMITTED, "the producer's database says committed")
        .when(F.col("g_outcome") == OUTCOME_ROLLED_BACK, "the producer's database says rolled back")
        .when(F.col("g_unsent_at").isNotNull(), "it is in the producer's outbox")
    )
    has = F.concat(F.lit("the log has "), F.col("g_present"), F.lit(" of "), F.col("g_expected"), F.lit(" messages"))
    counted = F.when(F.col("t_code").isin("missing_in_log", "extra_in_log"), has)
    return _finding(
        code=F.col("t_code"),
        messages=F.coalesce(F.nullif("g_present", F.lit(0)), F.col("g_expected")),
        at_ms=F.col("began_at"),
        detail=F.concat_ws("; ", counted, producer),
    )


def _of_message(code: str, group: str | None, at: Column) -> Column:
    times = F.when(F.col("m_code") == "twice_in_log", F.concat(F.lit("it is there "), "logged", F.lit(" times")))
    return _finding(
        code=F.col(code),
        message_id=F.when(is_plain(), F.col("gid")).otherwise(F.concat_ws("/", "gid", "sequence")),
        group=F.lit(group),
        place=F.col("place"),
        offset=F.col("offset"),
        messages=F.lit(1),
        at_ms=F.coalesce(at, F.col("began_at")),
        detail=times if code == "m_code" else F.lit(None),
    )
