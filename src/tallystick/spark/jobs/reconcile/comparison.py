"""The comparison: one shuffle by gid, and from there on all that is known of a transaction is in one place.

Rows of all sides are brought together (not joined side by side, which would shuffle each of them), added up by gid and
sequence, and every row then sees what is known of its transaction as a whole. Nothing is ever collected into a
list: a transaction may have millions of messages (a batch that Spark wrote).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tallystick.spark.jobs.reconcile import rules
from tallystick.spark.jobs.reconcile.rules import BEGINNING, Bounds, is_plain
from tallystick.spark.jobs.reconcile.summary import CODES
from tallystick.spark.jobs.reconcile.traces import (
    OUTCOME_COMMITTED,
    OUTCOME_ROLLED_BACK,
    PARKED,
    PREPARED,
    STATE_COMMITTED,
    STATE_ROLLED_BACK,
    WHOLE,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRACE = (
    "gid string, sequence bigint, outcome tinyint, decided_at bigint, unsent_at bigint, state tinyint, "
    "created_at bigint, resolved_at bigint, expected int, owned boolean, logged int, announced int, withdrawn int, "
    "logged_at bigint, born_at bigint, place int, offset bigint, must_have_row boolean, delayed int, "
    "payload bigint"
)
_BY_GROUP = "due_{0} tinyint, dead_{0} int, inbox_{0} int, applied_at_{0} bigint, effect_{0} int, payload_{0} bigint"

# Where several rows tell of one message or transaction, the largest of these counts; of all others the smallest.
_LARGEST = ("state", "resolved_at", "expected", "owned", "must_have_row")

# The gids that we draw begin with a time: milliseconds in eleven digits, then twenty random ones.
_TIME_IN_GID = r"^(?:[0-9a-f]+-)?([0-9a-f]{11})[0-9a-f]{20}$"
COLUMNS = (
    *("kind", "code", "side", "gid", "message_id", "group", "topic", "queue", "offset", "messages"),
    *("at", "age_ms", "explanation"),
)


def empty_traces(spark: SparkSession, groups: int) -> DataFrame:
    """No rows, and all the columns that traces may have."""
    schema = ", ".join([_TRACE, *[_BY_GROUP.format(number) for number in range(groups)]])
    return spark.createDataFrame([], schema)


def compare(traces: list[DataFrame], bounds: Bounds, partitions: int) -> DataFrame:
    """A row for each message and each transaction, with a code for each thing that is wrong with it."""
    together = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), traces)
    # By gid alone: then neither of the two steps below has to shuffle again.
    spread = together.repartition(partitions, "gid")
    summed = spread.groupBy("gid", "sequence").agg(*[_summed(name).alias(name) for name in spread.columns[2:]])
    codes = [rules.transaction_code(bounds).alias("t_code"), rules.message_code(bounds).alias("m_code")]
    codes += [rules.consumer_code(number, bounds).alias(f"c_code_{number}") for number in range(bounds.groups)]
    return _with_whole(summed, bounds.groups).withColumns(_times(bounds)).select("*", *codes)


def _summed(name: str) -> Column:
    if name == "logged" or name.startswith("effect_"):
        return F.sum(name)
    return F.max(name) if name in _LARGEST else F.min(name)


def _with_whole(summed: DataFrame, groups: int) -> DataFrame:
    """Beside each row, what is known of its transaction as a whole."""
    whole = Window.partitionBy("gid")
    present = (F.col("logged") > 0) | F.col("announced").isNotNull() | F.col("delayed").isNotNull()
    applied = [F.col(f"{kind}_{number}").isNotNull() for kind in ("inbox", "effect") for number in range(groups)]
    any_applied = reduce(lambda left, right: left | right, applied, F.lit(False))
    times = [F.col(f"applied_at_{number}") for number in range(groups)]
    first_applied = F.least(*times, F.lit(None)) if times else F.lit(None).cast("bigint")
    known: dict[str, Column] = {
        "g_first_sequence": F.min("sequence"),
        "g_outcome": F.min("outcome"),
        "g_decided_at": F.min("decided_at"),
        "g_unsent_at": F.min("unsent_at"),
        "g_state": F.max("state"),
        "g_created_at": F.min("created_at"),
        "g_resolved_at": F.max("resolved_at"),
        "g_expected": F.max("expected"),
        "g_owned": F.max(F.coalesce("owned", F.lit(False))),
        "g_must_have_row": F.max(F.coalesce("must_have_row", F.lit(False))),
        "g_logged": F.count(F.when(F.col("logged") > 0, 1)),
        "g_present": F.count(F.when(present, 1)),
        "g_logged_at": F.min("logged_at"),
        "g_born_at": F.min("born_at"),
        "g_applied": F.max(any_applied),
        "g_applied_at": F.min(first_applied),
    }
    return summed.withColumns({name: column.over(whole) for name, column in known.items()})


def _times(bounds: Bounds) -> dict[str, Column]:
    """When a transaction began, by the best witness there is; and whether that is in the window.

    One time decides for all rows of a transaction, so that a window's edge never cuts one in two.
    """
    digits = F.regexp_extract("gid", _TIME_IN_GID, 1)
    drawn = F.when(digits != "", F.conv(digits, 16, 10).try_cast("bigint"))
    seen = F.least("g_decided_at", "g_unsent_at", "g_born_at", "g_applied_at")
    # Whatever the name says, it began no later than it was seen.
    began = F.coalesce(F.col("g_created_at"), F.least(drawn, seen))
    inside = (began >= bounds.since_ms) & (began < bounds.until_ms)
    # An effect alone has no time: all else of its message may lie before the window, where nobody has looked.
    timeless = F.lit(bounds.since_ms == BEGINNING)
    return {"began_at": F.coalesce(began, F.lit(bounds.now_ms)), "in_window": F.coalesce(inside, timeless)}


def counts(bounds: Bounds) -> list[Column]:
    """How much was compared: for the summary, added up in the same pass."""
    whole = (F.col("sequence") == F.col("g_first_sequence")) & F.col("in_window")
    message = (F.col("sequence") != WHOLE) & F.col("in_window")

    def count(condition: Column, name: str) -> Column:
        return F.count(F.when(condition, 1)).alias(name)

    state, outcome = F.col("g_state"), F.col("g_outcome")
    found = [
        count(whole & ~rules.is_plain(), "transactions"),
        count(whole & (outcome == OUTCOME_COMMITTED), "producer_committed"),
        count(whole & (outcome == OUTCOME_ROLLED_BACK), "producer_rolled_back"),
        count(whole & state.isin(PREPARED, PARKED), "broker_pending"),
        count(whole & (state == STATE_COMMITTED), "broker_committed"),
        count(whole & (state == STATE_ROLLED_BACK), "broker_rolled_back"),
        count(message & (F.col("logged") > 0), "messages_in_log"),
        count(message & (F.col("logged") > 0) & rules.is_plain(), "messages_without_gid"),
        count(
            whole & (state == STATE_COMMITTED) & ~F.col("g_owned") & outcome.isNull() & (F.col("g_logged") > 0),
            "sent_without_barrier",
        ),
        count(rules.in_flight(bounds), "in_flight"),
        count(~F.col("in_window") & (F.col("sequence") == F.col("g_first_sequence")), "outside_of_window"),
    ]
    for number in range(bounds.groups):
        found.append(count(message & F.col(f"inbox_{number}").isNotNull(), f"inbox_{number}"))
        found.append(F.coalesce(F.sum(F.when(message, F.col(f"effect_{number}"))), F.lit(0)).alias(f"effect_{number}"))
        found.append(count(message & F.col(f"due_{number}").isNotNull(), f"due_{number}"))
        if bounds.digests:
            both = F.col(f"payload_{number}").isNotNull() & F.col("payload").isNotNull()
            found.append(count(message & both, f"payload_{number}"))
    return found


# --- findings: one row for each thing that is wrong, with words for a human -------------------------------------


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
