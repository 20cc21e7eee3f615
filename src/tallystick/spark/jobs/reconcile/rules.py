"""From what is known of a transaction or a message to what is wrong with it.

Every rule is sound for a system that runs, because of the order in which snapshots are taken: groups' places,
consumers, log, transactions, producers. What a later step of a transaction left behind is read before what an
earlier step did, so whatever shows the later step must show the earlier one, or there is damage (ghost,
contradictory). The other way round a missing later step may only not have happened yet: it needs the grace (lost).
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

from tallystick.spark.jobs.reconcile.traces import (
    OUTCOME_COMMITTED,
    OUTCOME_ROLLED_BACK,
    PARKED,
    PREPARED,
    SETTLED,
    STATE_COMMITTED,
    STATE_ROLLED_BACK,
    UNKNOWN,
    WAITING,
    WHOLE,
)

Case = tuple[Column, str]
BEGINNING = -(2**62)
END = 2**62
# Ages are compared across clocks that were set by each other a moment ago; this covers the way between them, and a
# database that keeps times in whole seconds.
MARGIN_MS = 10_000


class Bounds(Struct, frozen=True, kw_only=True):
    """`now_ms` is when reading began. From `..._from` on, rows of a side cannot have been cleaned up or expired:

    * `remembered_from`: a transaction that was resolved since then is still known to the broker;
    * `log_from`: a message that was stored since then is still in the log (or in the archive that is read with it);
    * `barrier_from`: a barrier row that was written since then is still there;
    * `applied_from`: by consumer, the same for inbox rows.
    """

    now_ms: int
    grace_ms: int = 0
    since_ms: int = BEGINNING
    until_ms: int = END
    late_after_ms: int | None = None
    remembered_from: int = BEGINNING
    log_from: int = BEGINNING
    barrier_from: int = BEGINNING
    applied_from: tuple[int, ...] = ()
    whole_log: bool = True
    brokers: bool = True
    producers: bool = True
    effects: tuple[bool, ...] = ()  # by consumer: its effects are given
    digests: bool = False  # values were read, to be compared with what consumers have kept of them
    keeps_offset: tuple[bool, ...] = ()  # by consumer: it has no inbox but an offset of its own

    @property
    def groups(self) -> int:
        return len(self.applied_from)


def _first(cases: list[Case]) -> Column:
    """The code of the first case that holds, or null."""
    code = F.lit(None).cast("string")
    for condition, name in reversed(cases):
        code = F.when(condition, F.lit(name)).otherwise(code)
    return code


def old_enough(at: Column, bounds: Bounds) -> Column:
    """Older than the grace: what was to follow should have followed."""
    return at <= bounds.now_ms - bounds.grace_ms


def is_plain() -> Column:
    """Sent without a gid, so that there is no transaction to compare with."""
    return F.instr("gid", "/") > 0


# --- a transaction -----------------------------------------------------------------------------------------------


def transaction_code(bounds: Bounds) -> Column:
    """What is wrong with a transaction as a whole; told once, in its first row."""
    cases = [*_contradictions(), *_undecided(bounds)] if bounds.brokers else []
    if bounds.brokers:
        cases += [*_ghosts(bounds), *_losses(bounds), *_late(bounds)]
    else:
        cases += _without_broker(bounds)
    here = (F.col("sequence") == F.col("g_first_sequence")) & F.col("in_window")
    return F.when(here, _first(cases))


def _contradictions() -> list[Case]:
    committed, rolled_back = F.col("g_outcome") == OUTCOME_COMMITTED, F.col("g_outcome") == OUTCOME_ROLLED_BACK
    visible = (F.col("g_state") == STATE_COMMITTED) | (F.col("g_logged") > 0)
    return [
        (rolled_back & visible, "rolled_back_at_producer"),
        (committed & (F.col("g_state") == STATE_ROLLED_BACK), "committed_at_producer"),
    ]


def _undecided(bounds: Bounds) -> list[Case]:
    pending, logged = F.col("g_state").isin(PREPARED, PARKED), F.col("g_logged") > 0
    unsent = F.col("g_unsent_at").isNotNull() & F.col("g_state").isNull() & (F.col("g_present") == 0)
    return [
        (pending & logged, "visible_undecided"),
        (F.col("g_state") == PARKED, "parked"),
        ((F.col("g_state") == PREPARED) & old_enough(F.col("g_created_at"), bounds), "prepared"),
        (unsent & old_enough(F.col("g_unsent_at"), bounds), "outbox"),
    ]


def _ghosts(bounds: Bounds) -> list[Case]:
    committed, logged = F.col("g_state") == STATE_COMMITTED, F.col("g_logged") > 0
    visible = committed | (logged & F.col("g_state").isNull())
    # A message of a transaction that nobody owns was sent as it is (`send`, the outbox, a Spark batch).
    unknown_to_producer = (
        F.lit(bounds.producers)
        & visible
        & (F.col("g_owned") | F.col("g_must_have_row"))
        & F.col("g_outcome").isNull()
        & (F.col("began_at") >= bounds.barrier_from)
    )
    forgotten = (
        F.col("g_state").isNull()
        & logged
        & ~is_plain()
        & ~F.coalesce(F.col("g_outcome") == OUTCOME_COMMITTED, F.lit(False))
        & (F.least("g_logged_at", "began_at") >= bounds.remembered_from)
    )
    return [
        ((F.col("g_state") == STATE_ROLLED_BACK) & logged, "visible_rolled_back"),
        (unknown_to_producer, "no_barrier_row"),
        (forgotten, "no_transaction"),
        (committed & (F.col("g_present") > F.col("g_expected")), "extra_in_log"),
    ]


def _losses(bounds: Bounds) -> list[Case]:
    nowhere = F.col("g_state").isNull() & (F.col("g_present") == 0) & F.col("g_unsent_at").isNull()
    # Either memory would do: that of the transaction, or the log itself (all of it).
    comparable = F.col("g_decided_at") >= (
        min(bounds.remembered_from, bounds.log_from) if bounds.whole_log else bounds.remembered_from
    )
    committed = F.col("g_outcome") == OUTCOME_COMMITTED
    incomplete = (
        F.lit(bounds.whole_log)
        & (F.col("g_state") == STATE_COMMITTED)
        & (F.col("g_present") < F.col("g_expected"))
        & (F.col("g_resolved_at") >= bounds.log_from)
        # What was committed after the ends of the log were taken is behind them: reading had begun by then.
        & old_enough(F.col("g_resolved_at"), bounds)
    )
    return [
        (committed & nowhere & comparable & old_enough(F.col("g_decided_at"), bounds), "unknown_to_broker"),
        (incomplete, "missing_in_log"),
    ]


def _late(bounds: Bounds) -> list[Case]:
    if bounds.late_after_ms is None:
        return []
    took = F.col("g_resolved_at") - F.col("g_created_at")
    return [((F.col("g_state") == STATE_COMMITTED) & (took > bounds.late_after_ms), "visible_late")]


def _without_broker(bounds: Bounds) -> list[Case]:
    """Producers and consumers alone: by gid, since nobody tells how many messages there were, nor in which topics."""
    applied = F.col("g_applied") & ~is_plain()
    committed = F.col("g_outcome") == OUTCOME_COMMITTED
    known_since = max([bounds.barrier_from, *bounds.applied_from])
    return [
        (applied & (F.col("g_outcome") == OUTCOME_ROLLED_BACK), "rolled_back_at_producer"),
        (applied & F.col("g_outcome").isNull() & (F.col("began_at") >= bounds.barrier_from), "applied_without_commit"),
        (F.col("g_unsent_at").isNotNull() & old_enough(F.col("g_unsent_at"), bounds), "outbox"),
        (
            committed
            & ~F.col("g_applied")
            & F.col("g_unsent_at").isNull()
            & (F.col("g_decided_at") >= known_since)
            & old_enough(F.col("g_decided_at"), bounds),
            "never_applied",
        ),
    ]


# --- a message ---------------------------------------------------------------------------------------------------


def message_code(bounds: Bounds) -> Column:
    """What is wrong with a message, whoever consumes it."""
    unconfirmed = (
        F.col("announced").isNotNull()
        & F.col("logged").isNull()
        & F.col("withdrawn").isNull()
        & old_enough(F.col("logged_at"), bounds)
    )
    cases = [(F.col("logged") > 1, "twice_in_log"), (unconfirmed, "unconfirmed")]
    return F.when((F.col("sequence") != WHOLE) & F.col("in_window"), _first(cases))


def consumer_code(number: int, bounds: Bounds) -> Column:
    """What is wrong with a message at one consumer group."""
    cases = [
        (F.col(f"effect_{number}") > 1, "effect_twice"),
        (F.col(f"payload_{number}") != F.col("payload"), "other_value"),
    ]
    if bounds.brokers:
        cases += [*_applied_for_nothing(number, bounds), *_not_applied(number, bounds)]
    elif bounds.effects[number]:
        cases.append((_effect_missing(number, bounds), "no_effect"))
    if bounds.late_after_ms is not None:
        took = F.col(f"applied_at_{number}") - F.col("logged_at")
        cases.append((took > bounds.late_after_ms, "applied_late"))
    return F.when((F.col("sequence") != WHOLE) & F.col("in_window"), _first(cases))


def _has(name: str) -> Column:
    return F.col(name).isNotNull()


def _applied_for_nothing(number: int, bounds: Bounds) -> list[Case]:
    """The consumer is read before the log, so what it has applied must be there, and committed."""
    applied = _has(f"inbox_{number}") | _has(f"effect_{number}")
    elsewhere = F.col("logged").isNull() & F.col("announced").isNull() & F.col("withdrawn").isNull()
    undecided = F.col("g_state").isin(PREPARED, PARKED, STATE_ROLLED_BACK)
    # A message that a committed transaction has and the log has not is told as missing there; one that the transaction
    # never had is not.
    invented = (F.col("g_state") == STATE_COMMITTED) & (
        (F.col("sequence") >= F.col("g_expected")) | (F.col("g_present") >= F.col("g_expected"))
    )
    unknown = F.col("g_state").isNull() & (F.col("began_at") >= _known_since(bounds))
    if not bounds.whole_log:
        unknown = unknown & ~is_plain() & (F.col("g_logged") == 0)
    return [(applied & elsewhere & (undecided | invented | unknown), "applied_not_in_log")]


def _known_since(bounds: Bounds) -> int:
    """From when on a message that was committed is in the log, or its transaction is known. Where nothing ever went
    from the log, what is not in it never was: whatever time its name tells."""
    if bounds.whole_log and bounds.log_from == BEGINNING:
        return BEGINNING
    return max(bounds.log_from, bounds.remembered_from)


def _effect_missing(number: int, bounds: Bounds) -> Column:
    return _has(f"inbox_{number}") & F.col(f"effect_{number}").isNull() & F.col("withdrawn").isNull()


def _not_applied(number: int, bounds: Bounds) -> list[Case]:
    due, dead = F.col(f"due_{number}"), _has(f"dead_{number}")
    applied = _has(f"effect_{number}") if bounds.effects[number] else _has(f"inbox_{number}")
    if bounds.keeps_offset[number] and not bounds.effects[number]:
        applied = applied | (due == SETTLED)  # the offset moved with the effect, and says all that can be said
    open_ = (F.col("logged") > 0) & ~applied & (F.col("logged_at") >= bounds.applied_from[number])
    old = old_enough(F.col("logged_at"), bounds)
    no_effect = (
        [((F.col("logged") > 0) & _effect_missing(number, bounds), "no_effect")] if bounds.effects[number] else []
    )
    return [
        *no_effect,
        (open_ & due.isNotNull() & dead, "dead_letter"),
        (open_ & (due == WAITING) & old, "waiting"),
        (open_ & due.isin(SETTLED, UNKNOWN) & old, "not_applied"),
    ]


# --- what is under way -------------------------------------------------------------------------------------------


def in_flight(bounds: Bounds) -> Column:
    """Rows that only their youth keeps from being judged."""
    here = F.col("sequence") == F.col("g_first_sequence")
    young = [
        here & (F.col("g_state") == PREPARED) & ~old_enough(F.col("g_created_at"), bounds),
        here & F.col("g_unsent_at").isNotNull() & ~old_enough(F.col("g_unsent_at"), bounds),
    ]
    for number in range(bounds.groups):
        missing = F.col(f"inbox_{number}").isNull() & F.col(f"effect_{number}").isNull()
        young.append(_has(f"due_{number}") & missing & ~old_enough(F.col("logged_at"), bounds))
    return F.col("in_window") & reduce(or_, [F.coalesce(one, F.lit(False)) for one in young])
