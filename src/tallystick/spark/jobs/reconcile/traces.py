"""Each side as rows of one shape: what a transaction or a message left behind there.

A row has a gid, a sequence (-1: it is about the transaction as a whole) and those of the columns that its side knows.
Message ids are `<gid>/<sequence>`; a message without a gid has the id `<store>/<topic>/<queue>/<offset>`, which stands
in the place of its gid (no gid has a slash in it). Texts are kept out: numbers are what makes one shuffle of all cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tallystick.barrier.queries import COMMITTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# `state` of a transaction, `outcome` of a barrier row, and `due` of a message to a group.
PREPARED, PARKED, STATE_COMMITTED, STATE_ROLLED_BACK = 1, 2, 3, 4
OUTCOME_COMMITTED, OUTCOME_ROLLED_BACK = 1, 2
SETTLED, WAITING, UNKNOWN = 1, 2, 3
WHOLE = -1

_STATES = {"prepared": PREPARED, "parked": PARKED, "committed": STATE_COMMITTED, "rolled_back": STATE_ROLLED_BACK}
SIGN, SIGNED_ID = "ts-sign", "ts-id"
_OUTCOME_GID = r":(commit|rollback)$"


def message_key(message_id: Column) -> tuple[Column, Column]:
    """(gid, sequence) of a message id, whichever of its forms it has."""
    head, tail = F.substring_index(message_id, "/", 1), F.substring_index(message_id, "/", -1)
    usual = F.concat_ws("/", head, tail) == message_id
    # The id under which a prepared message waits at its consumer: <gid>:<sequence>.
    signed = (F.instr(message_id, "/") == 0) & message_id.rlike(r":[0-9]+$")
    before, number = F.regexp_replace(message_id, r":[0-9]+$", ""), F.substring_index(message_id, ":", -1)
    gid = F.when(usual, head).when(signed, before).otherwise(message_id)
    sequence = F.when(signed, number).otherwise(tail).try_cast("bigint")
    return gid, F.coalesce(sequence, F.lit(0))


def _number(digest: Column) -> Column:
    """The first 60 bits of a digest in hex."""
    return F.conv(F.substring(digest, 1, 15), 16, 10).cast("bigint")


def _milliseconds(seconds: Column, ahead_ms: int) -> Column:
    return F.round(seconds * 1000).cast("bigint") + F.lit(ahead_ms)


def _base_gid(gid: Column) -> Column:
    return F.regexp_replace(gid, _OUTCOME_GID, "")


# --- producers ---------------------------------------------------------------------------------------------------


def producer_traces(outcomes: DataFrame, ahead_ms: int) -> DataFrame:
    """From gid, reason, seconds."""
    known = F.when(F.col("reason") == COMMITTED, OUTCOME_COMMITTED).otherwise(OUTCOME_ROLLED_BACK)
    return outcomes.select(
        "gid",
        F.lit(WHOLE).cast("bigint").alias("sequence"),
        known.cast("tinyint").alias("outcome"),
        _milliseconds(F.col("seconds"), ahead_ms).alias("decided_at"),
    )


def outbox_traces(unsent: DataFrame, ahead_ms: int) -> DataFrame:
    """From gid, seconds. The row of an outcome that consumers have to be told is one of its transaction."""
    return unsent.select(
        _base_gid(F.col("gid")).alias("gid"),
        F.lit(WHOLE).cast("bigint").alias("sequence"),
        _milliseconds(F.col("seconds"), ahead_ms).alias("unsent_at"),
    )


# --- brokers -----------------------------------------------------------------------------------------------------


def transaction_traces(transactions: DataFrame, producer_groups: Sequence[str], consumer_dedup: bool) -> DataFrame:
    """From the broker's table. `owned`: a producer prepared it, so that producer's database has a row of it."""
    state = F.lit(None).cast("tinyint")
    for name, number in _STATES.items():
        state = F.when(F.col("state") == name, F.lit(number).cast("tinyint")).otherwise(state)
    owned = F.col("group").isin(list(producer_groups)) if producer_groups else F.col("group") != ""
    kept = transactions.filter(~F.col("gid").rlike(_OUTCOME_GID)) if consumer_dedup else transactions
    return kept.select(
        "gid",
        F.lit(WHOLE).cast("bigint").alias("sequence"),
        state.alias("state"),
        F.unix_millis("created_at").alias("created_at"),
        F.unix_millis("resolved_at").alias("resolved_at"),
        F.col("messages").alias("expected"),
        F.coalesce(owned, F.lit(False)).alias("owned"),
    )


def log_traces(log: DataFrame, places: DataFrame, store: str, groups: int, consumer_dedup: bool) -> DataFrame:
    """From the log's columns and what is known of its queues (see `brokers.Places.frame`). Where values were read, each
    becomes a number; of a message whose outcome follows it, that is the prepared one's."""
    joined = log.join(F.broadcast(places), ["topic", "queue"])
    plain = F.coalesce(F.col("gid"), F.lit("")) == ""
    own_id = F.concat_ws("/", F.lit(store), "topic", "queue", "offset")
    gid, sequence = F.when(plain, own_id).otherwise(F.col("gid")), F.col("sequence").cast("bigint")
    sequence = F.when(plain, F.col("offset")).otherwise(sequence)
    visible = valued = F.lit(True)
    more: list[Column] = []
    if consumer_dedup:
        sign, (signed_gid, signed_number) = F.col("headers")[SIGN], message_key(F.col("headers")[SIGNED_ID])
        is_signed = F.coalesce(sign.isin("prepare", "commit", "rollback"), F.lit(False))
        gid = F.when(is_signed, signed_gid).otherwise(gid)
        sequence = F.when(is_signed, signed_number).otherwise(sequence)
        visible, valued = ~is_signed | (sign == "commit"), ~is_signed | (sign == "prepare")
        more = [
            F.when(sign == "prepare", 1).alias("announced"),
            F.when(sign == "rollback", 1).alias("withdrawn"),
        ]
    if "value" in log.columns:
        more.append(F.when(valued, _number(F.sha2("value", 256))).alias("payload"))
    at = F.unix_millis("timestamp")
    return joined.select(
        gid.alias("gid"),
        sequence.alias("sequence"),
        F.when(visible, 1).alias("logged"),
        *more,
        at.alias("logged_at"),
        # A delayed message is stored long after its transaction: the time of its birth tells them together.
        F.least(at, F.unix_millis("born_at")).alias("born_at"),
        "place",
        F.when(visible, F.col("offset")).alias("offset"),
        F.when(F.col("must_have_row"), True).alias("must_have_row"),
        *[_due(number, visible, at).alias(f"due_{number}") for number in range(groups)],
    )


def _due(number: int, visible: Column, at: Column) -> Column:
    """What a consumer group has to do with a message: nothing (null), or see above."""
    limit, oldest, tags = F.col(f"limit_{number}"), F.col(f"oldest_{number}"), F.col(f"tags_{number}")
    wanted = visible & F.col(f"reads_{number}") & (tags.isNull() | F.array_contains(tags, F.col("tag")))
    settled = (F.col("offset") < limit) & (oldest.isNull() | (at < oldest))
    known = F.when(settled, SETTLED).otherwise(WAITING)
    return F.when(wanted, F.when(limit.isNull(), UNKNOWN).otherwise(known).cast("tinyint"))


def dead_letter_traces(letters: DataFrame, store: str, number: int) -> DataFrame:
    """From a group's dead-letter topic; a letter without a gid says in its headers where it lay."""
    dead = F.concat_ws("/", F.lit(store), *[F.col("headers")[f"dead-{part}"] for part in ("topic", "queue", "offset")])
    plain = F.coalesce(F.col("gid"), F.lit("")) == ""
    usual = F.concat_ws("/", "gid", "sequence")
    # Of a signed message the letter keeps the headers, and with them the id that its consumer knows it by.
    known = F.when(plain, dead).otherwise(F.coalesce(F.col("headers")[SIGNED_ID], usual))
    gid, sequence = message_key(known)
    return letters.select(gid.alias("gid"), sequence.alias("sequence"), F.lit(1).alias(f"dead_{number}"))


def delayed_traces(delayed: DataFrame) -> DataFrame:
    """From the broker's table of messages that wait for their time."""
    plain = F.coalesce(F.col("gid"), F.lit("")) == ""
    return delayed.filter(~plain).select(
        "gid", F.col("sequence").cast("bigint").alias("sequence"), F.lit(1).alias("delayed")
    )


# --- consumers ---------------------------------------------------------------------------------------------------


def inbox_traces(inbox: DataFrame, number: int, ahead_ms: int) -> DataFrame:
    """From message_id, seconds."""
    gid, sequence = message_key(F.col("message_id"))
    return inbox.select(
        gid.alias("gid"),
        sequence.alias("sequence"),
        F.lit(1).alias(f"inbox_{number}"),
        _milliseconds(F.col("seconds"), ahead_ms).alias(f"applied_at_{number}"),
    )


def digest_traces(digests: DataFrame, number: int) -> DataFrame:
    """From message_id, digest."""
    gid, sequence = message_key(F.col("message_id"))
    return digests.select(
        gid.alias("gid"), sequence.alias("sequence"), _number(F.col("digest")).alias(f"payload_{number}")
    )


def effect_traces(effects: DataFrame, number: int) -> DataFrame:
    """From message_id, one row for each effect."""
    gid, sequence = message_key(F.col("message_id"))
    return effects.select(gid.alias("gid"), sequence.alias("sequence"), F.lit(1).alias(f"effect_{number}"))
