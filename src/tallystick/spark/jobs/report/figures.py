"""The figures of a report: each a small DataFrame that Spark computes from the messages and the broker's tables.

Every function takes the rows as the source or a table gives them, and cuts them to the range itself.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tallystick.core.names import DEAD_LETTERS
from tallystick.spark.jobs.report.facts import AGE_MS, TOOK_MS, classes
from tallystick.spark.jobs.report.settings import Span

MOST_REASONS = 20
NEVER_PREPARED = ("sender", "ledger")
PENDING = ("prepared", "parked")


def volume(messages: DataFrame, span: Span) -> DataFrame:
    """Messages and bytes of their values, by topic and time."""
    stored = messages.where(_within("timestamp", span))
    return (
        stored.groupBy(_step("timestamp", span), "topic")
        .agg(f.count("*").alias("messages"), f.sum(f.octet_length("value").cast("bigint")).alias("bytes"))
        .orderBy("step", "topic")
    )


def dead_letters(messages: DataFrame, span: Span) -> DataFrame:
    """Messages that a consumer group gave up, by where they came from; `attempts` is how often they were tried."""
    attempts = f.try_to_number(f.col("headers")["dead-attempts"], f.lit("999999999")).cast("bigint")
    return (
        _buried(messages, span)
        .groupBy("group", f.col("headers")["dead-topic"].alias("topic"))
        .agg(
            f.count("*").alias("letters"),
            f.sum(attempts).alias("attempts"),
            f.max(attempts).alias("most_attempts"),
            f.max("timestamp").alias("last_at"),
        )
        .orderBy(f.desc("letters"), "group", "topic")
    )


def dead_letter_reasons(messages: DataFrame, span: Span) -> DataFrame:
    """Why they were given up: the reasons that came most often."""
    reason = f.col("headers")["dead-reason"].alias("reason")
    counted = _buried(messages, span).groupBy("group", reason).agg(f.count("*").alias("letters"))
    return counted.orderBy(f.desc("letters"), "group", "reason").limit(MOST_REASONS)


def _buried(messages: DataFrame, span: Span) -> DataFrame:
    buried = messages.where(f.col("topic").startswith(DEAD_LETTERS) & _within("timestamp", span))
    return buried.withColumn("group", f.substr("topic", f.lit(len(DEAD_LETTERS) + 1)))


def concerned(transactions: DataFrame, span: Span) -> DataFrame:
    """The transactions that a report is about: those whose outcome came within the range, and those without one."""
    kept = ("state", "group", "messages", "created_at", "resolved_at", "resolved_by", "checks", "last_error")
    return transactions.select(*kept).where(_waits(span) | _decided(span))


def resolved(transactions: DataFrame, span: Span) -> DataFrame:
    """The transactions whose outcome came within the range. `took_ms`, from prepare to outcome, is null for those that
    were never prepared: a send under a gid, a batch from Spark, or the rollback of a gid that nobody knew."""
    took = f.unix_millis("resolved_at") - f.unix_millis("created_at")
    # They have the same two times; counted in, they would make the others look quick.
    prepared = ~f.col("resolved_by").isin(*NEVER_PREPARED) & (f.col("group") != "")
    return transactions.where(_decided(span)).select(
        f.coalesce("group", f.lit("")).alias("group"),
        f.col("state").alias("outcome"),
        f.col("resolved_by").alias("by"),
        "messages",
        "checks",
        "resolved_at",
        f.when(prepared, took).alias("took_ms"),
    )


def outcomes(resolved: DataFrame) -> DataFrame:
    """Transactions by producer group, outcome, and who told the outcome."""
    return (
        resolved.groupBy("group", "outcome", "by")
        .agg(f.count("*").alias("transactions"), f.sum("messages").alias("messages"))
        .orderBy("group", "outcome", "by")
    )


def outcomes_over_time(resolved: DataFrame, span: Span) -> DataFrame:
    """Transactions by the time at which their outcome became durable."""
    decided = resolved.groupBy(_step("resolved_at", span), "outcome", "by")
    return decided.agg(f.count("*").alias("transactions")).orderBy("step", "outcome", "by")


def time_to_outcome(resolved: DataFrame) -> DataFrame:
    """From prepare to outcome: exact percentiles (interpolated), by group; the row without a group is for all."""
    told = resolved.where(f.col("took_ms").isNotNull())
    shares = [f.percentile("took_ms", f.lit(share / 100)).alias(f"p{share}_ms") for share in (50, 95, 99)]
    return (
        told.rollup("group")
        .agg(f.count("*").alias("transactions"), *shares, f.max("took_ms").alias("most_ms"))
        .where(f.col("transactions") > 0)  # a rollup of nothing is one row of nothing
        .orderBy(f.col("group").asc_nulls_first())
    )


def time_to_outcome_histogram(resolved: DataFrame) -> DataFrame:
    """How many transactions took how long: more than `over_ms`, at most `upto_ms`."""
    told = resolved.where(f.col("took_ms").isNotNull())
    counted = told.groupBy(_class("took_ms", TOOK_MS), "outcome").agg(f.count("*").alias("transactions"))
    return _with_edges(counted, TOOK_MS).select("over_ms", "upto_ms", "outcome", "transactions")


def checks(resolved: DataFrame) -> DataFrame:
    """How often a transaction was checked before its outcome came."""
    told = resolved.where(f.col("took_ms").isNotNull())
    return told.groupBy("checks", "outcome").agg(f.count("*").alias("transactions")).orderBy("checks", "outcome")


def pending(transactions: DataFrame, span: Span) -> DataFrame:
    """Transactions that have no outcome now, by group, state and age."""
    waiting = transactions.where(_waits(span)).withColumn("age_ms", f.lit(span.now_ms) - f.unix_millis("created_at"))
    counted = waiting.groupBy("group", "state", _class("age_ms", AGE_MS)).agg(
        f.count("*").alias("transactions"),
        f.sum("messages").alias("messages"),
        f.max("checks").alias("most_checks"),
        f.min("created_at").alias("oldest_at"),
    )
    kept = ("group", "state", "over_ms", "upto_ms", "transactions", "messages", "most_checks", "oldest_at")
    return _with_edges(counted, AGE_MS, "group", "state").select(*kept)


def pending_reasons(transactions: DataFrame, span: Span) -> DataFrame:
    """Why they wait: the errors of the last checks that came most often."""
    told = transactions.where(_waits(span)).where(f.coalesce("last_error", f.lit("")) != "")
    counted = told.groupBy("state", f.col("last_error").alias("reason")).agg(f.count("*").alias("transactions"))
    return counted.orderBy(f.desc("transactions"), "state", "reason").limit(MOST_REASONS)


def lag(offsets: DataFrame) -> DataFrame:
    """How far each consumer group is behind, queue by queue, now."""
    kept = ("group", "topic", "queue", "offset", "start", "end", "lag", "leased")
    return offsets.select(*kept).orderBy("group", "topic", "queue")


def _waits(span: Span) -> Column:
    return f.col("state").isin(*PENDING) & (f.unix_millis("created_at") < f.lit(span.until_ms))


def _decided(span: Span) -> Column:
    return ~f.col("state").isin(*PENDING) & _within("resolved_at", span)


def _within(column: str, span: Span) -> Column:
    at = f.unix_millis(f.col(column))
    return (at >= f.lit(span.since_ms)) & (at < f.lit(span.until_ms))


def _step(column: str, span: Span) -> Column:
    width = f.lit(span.step_ms)
    return f.timestamp_millis(f.floor(f.unix_millis(f.col(column)) / width) * width).alias("step")


def _class(column: str, edges: list[int]) -> Column:
    """0 for at most the first edge, and so on; one more than there are edges for more than the last."""
    return reduce(add, [(f.col(column) > f.lit(edge)).cast("int") for edge in edges]).alias("class")


def _with_edges(counted: DataFrame, edges: list[int], *order: str) -> DataFrame:
    """The two edges of each class instead of its number; there is no upper edge to the last."""
    over, upto = (f.array(*[f.lit(pair[side]).cast("bigint") for pair in classes(edges)]) for side in (0, 1))
    place = f.col("class") + f.lit(1)
    named = counted.withColumn("over_ms", f.element_at(over, place)).withColumn("upto_ms", f.element_at(upto, place))
    return named.orderBy(*order, "over_ms", *[name for name in ("outcome",) if name in counted.columns])
