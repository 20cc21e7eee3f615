"""The barrier: the row in the producer's own database that holds the truth of an outcome.

The producer inserts (gid, committed) in its local transaction. A check-back inserts (gid, rolled back) in a
transaction of its own. The unique key lets exactly one of them in:

* the local transaction committed: the check-back's insert finds the row, and reads `committed`;
* it rolled back, or never came: the check-back's row stands, and a late local transaction fails on it;
* it is still running: it holds the key, so the check-back's insert waits, and that is how it is told apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from tallystick.barrier import queries
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import AlreadyDecided, DatabaseReadOnly
from tallystick.barrier.faults import Contention, Duplicate
from tallystick.barrier.names import BARRIER_TABLE
from tallystick.barrier.operations.common import DEFAULT_WAIT, as_text, chunks, insert_once, own_transaction, writing
from tallystick.barrier.operations.identity import Whereabouts, require_source
from tallystick.barrier.operations.tether import insert_tied, lost
from tallystick.barrier.statement import Control, Statement, Steps, operation, own_operation
from tallystick.core.names import check_gid
from tallystick.core.ops import Outcome

Decision = Literal["committed", "rolled_back", "running"]

# The first try of each gid: long enough for a commit that is just being written, too short to keep others waiting.
_GLANCE = 0.05


@operation
def mark_committed(sql: Dialect, gid: str, *, table: str = BARRIER_TABLE) -> Steps[None]:
    """Say `committed`, as part of the local transaction: true if and only if that commits.

    Raises `AlreadyDecided` if the gid has an outcome; the local transaction must then be rolled back.
    """
    text = queries.insert_text(sql, queries.outcome_row(sql, table))
    new = yield from insert_once(Statement(text, {"gid": check_gid(gid), "reason": queries.COMMITTED}))
    if not new:
        raise AlreadyDecided(gid, (yield from _outcome_in_the_way(sql, table, gid)))


@operation
def mark_committed_here(sql: Dialect, gid: str, token: str, *, table: str = BARRIER_TABLE) -> Steps[Whereabouts]:
    """The same, and where the transaction finds the barrier; `TransactionLost` unless it is the one that `tie` marked
    with the token. To be asked once."""
    params: dict[str, object] = {"gid": check_gid(gid), "reason": queries.COMMITTED}
    here = yield from insert_tied(sql, token, queries.outcome_row(sql, table), params, table)
    if here is None:
        raise AlreadyDecided(gid, (yield from _outcome_in_the_way(sql, table, gid)))
    return here


@operation
def rename_mark(sql: Dialect, gid: str, new: str, *, table: str = BARRIER_TABLE) -> Steps[None]:
    """Give the mark of the open transaction another gid: of the old one nothing remains in the barrier."""
    if (yield queries.rename_outcome(table, gid, check_gid(new))).rowcount != 1:
        raise lost()


@own_operation
def decide(
    sql: Dialect, gid: str, *, wait: float = DEFAULT_WAIT, table: str = BARRIER_TABLE, source: str = ""
) -> Steps[Decision]:
    """The check-back of one gid: see `decide_many`."""
    yield from require_source(sql, table, source)
    answers = yield from _decide(sql, [gid], wait, table, time.monotonic)
    return answers[gid]


@own_operation
def decide_many(
    sql: Dialect,
    gids: Iterable[str],
    *,
    wait: float = DEFAULT_WAIT,
    table: str = BARRIER_TABLE,
    source: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> Steps[dict[str, Decision]]:
    """The check-back: give every gid that has no outcome the outcome `rolled_back`, and tell them all.

    `running` means that a local transaction was still open when `wait` seconds, shared by all of them, had
    passed; nothing is decided for it then, ask again later. An error never stands for an outcome: `WrongDatabase`
    if the barrier that is found here is not the one that `source` names.
    """
    yield from require_source(sql, table, source)
    return (yield from _decide(sql, list(dict.fromkeys(gids)), wait, table, clock))


@own_operation
def decide_close(
    sql: Dialect,
    gids: Sequence[str],
    *,
    wait: float = DEFAULT_WAIT,
    table: str = BARRIER_TABLE,
    clock: Callable[[], float] = time.monotonic,
) -> Steps[dict[str, Decision]]:
    """`decide_many` for gids that lie close together, such as those of a backlog in their order.

    A look at all rows between the first gid and the last costs a tenth of a look for each. What it does not tell
    (because too many others lie there, or the database has another order) is asked for as ever.
    """
    known = (yield from _read_between(sql, table, gids)) if gids else {}
    missing = [gid for gid in gids if gid not in known]
    if missing:
        try:
            yield from _roll_back_all(sql, table, missing, wait, clock)
        except DatabaseReadOnly:
            if not known:
                raise
        known.update((yield from _read_between(sql, table, missing)))
        known.update((yield from _read_outcomes(sql, table, [gid for gid in missing if gid not in known], _GLANCE)))
    return {gid: known.get(gid, "running") for gid in gids}


@operation
def outcome_of(sql: Dialect, gid: str, *, table: str = BARRIER_TABLE) -> Steps[Outcome | None]:
    """The outcome that the open transaction can see, without waiting for anybody: none may only mean not yet."""
    return (yield from _visible_outcome(queries.select_outcomes(sql, table, [check_gid(gid)]), gid))


@own_operation
def committed_outcome(
    sql: Dialect, gid: str, *, wait: float = DEFAULT_WAIT, table: str = BARRIER_TABLE
) -> Steps[Outcome | None]:
    """The same for everybody: what a transaction of its own can see. An error if it cannot look."""
    read = _visible_outcome(queries.select_outcomes(sql, table, [check_gid(gid)]), gid)
    return (yield from own_transaction(sql, sql.begin_reading(wait), read, end=Control.ROLLBACK))


@own_operation
def known_outcomes(
    sql: Dialect, gids: Iterable[str], *, wait: float = DEFAULT_WAIT, table: str = BARRIER_TABLE
) -> Steps[dict[str, Outcome]]:
    """The outcomes that are there. Nothing is decided, so one that is missing may still become anything."""
    return (yield from _read_outcomes(sql, table, [check_gid(gid) for gid in dict.fromkeys(gids)], wait))


def _decide(
    sql: Dialect, gids: Sequence[str], wait: float, table: str, clock: Callable[[], float]
) -> Steps[dict[str, Decision]]:
    for gid in gids:
        check_gid(gid)
    known = yield from _decide_each(sql, gids, wait, table, clock)
    return {gid: known.get(gid, "running") for gid in gids}


def _decide_each(
    sql: Dialect, gids: Sequence[str], wait: float, table: str, clock: Callable[[], float]
) -> Steps[dict[str, Outcome]]:
    known = yield from _read_outcomes(sql, table, gids, _GLANCE)
    undecided = [gid for gid in gids if gid not in known]
    if not undecided:
        return known
    try:
        yield from _roll_back_all(sql, table, undecided, wait, clock)
    except DatabaseReadOnly:
        if not known:
            raise
        return known  # a standby: what it has is true. The others are asked for again, and then it is an error
    # What counts is the row, whoever wrote it; and it is read from the table it was written to.
    known.update((yield from _read_outcomes(sql, table, undecided, _GLANCE)))
    return known


def _roll_back_all(
    sql: Dialect, table: str, gids: Sequence[str], wait: float, clock: Callable[[], float]
) -> Steps[None]:
    """Insert `rolled back` for each that has no row, as far as running transactions and the time allow."""
    busy = yield from _glance_at_all(sql, table, gids)
    deadline = clock() + wait
    for some in chunks(busy, sql.at_once) if sql.single_writer else [[gid] for gid in busy]:
        left = deadline - clock()
        if left <= 0:
            break
        yield from _roll_back(sql, table, some, left)


def _glance_at_all(sql: Dialect, table: str, gids: Sequence[str]) -> Steps[list[str]]:
    """Try them without waiting, so that a running transaction holds up nobody; return those in whose way one is."""
    busy: list[str] = []
    # In order, as everybody does it who decides many at once: two of them then never wait for each other.
    for some in chunks(sorted(gids), sql.at_once):
        if busy and sql.single_writer:
            busy.extend(some)
        else:
            busy.extend((yield from _glance_at_some(sql, table, some)))
    return busy


def _glance_at_some(sql: Dialect, table: str, gids: Sequence[str]) -> Steps[list[str]]:
    """All of them at once; if that is not possible, ever smaller parts, down to those that cannot be decided."""
    if (yield from _roll_back(sql, table, gids, _GLANCE)):
        return []
    if len(gids) == 1 or sql.single_writer:
        return list(gids)
    middle = len(gids) // 2
    first = yield from _glance_at_some(sql, table, gids[:middle])
    return first + (yield from _glance_at_some(sql, table, gids[middle:]))


def _roll_back(sql: Dialect, table: str, gids: Sequence[str], wait: float) -> Steps[bool]:
    """Insert `rolled back` for each that has no row: all or none. False if another transaction was in the way."""
    try:
        yield from writing(sql, _insert_rolled_back(sql, table, gids), wait)
    except Contention:
        return False
    except Duplicate:
        return len(gids) == 1  # a row has come in between: there is nothing to add, if it was about this one alone
    return True


def _insert_rolled_back(sql: Dialect, table: str, gids: Sequence[str]) -> Steps[None]:
    missing = gids
    if sql.insert_locks_gap:
        # Wait by reading: an insert that waits would lock the gap before the row as well, and producers whose
        # gids fall into it would wait with us.
        rows = (yield queries.select_outcomes(sql, table, gids, sql.latest)).rows
        there = {as_text(gid) for gid, _ in rows}
        missing = [gid for gid in gids if gid not in there]
    if missing:
        yield queries.insert_outcomes(sql, table, missing, queries.ROLLED_BACK)


def _read_outcomes(sql: Dialect, table: str, gids: Sequence[str], wait: float) -> Steps[dict[str, Outcome]]:
    known: dict[str, Outcome] = {}
    for some in chunks(gids, sql.at_once):
        read = _outcomes_of(queries.select_outcomes(sql, table, some))
        try:
            found = yield from own_transaction(sql, sql.begin_reading(wait), read, end=Control.ROLLBACK)
        except Contention:
            continue
        # A collation that ignores case may return the row of another gid: not an answer.
        known.update({gid: found[gid] for gid in some if gid in found})
    return known


def _read_between(sql: Dialect, table: str, gids: Sequence[str]) -> Steps[dict[str, Outcome]]:
    """The outcomes of these as far as they are among the first rows from the lowest gid to the highest."""
    read = _outcomes_of(queries.select_outcomes_between(table, min(gids), max(gids), 2 * len(gids)))
    try:
        found = yield from own_transaction(sql, sql.begin_reading(_GLANCE), read, end=Control.ROLLBACK)
    except Contention:
        return {}
    return {gid: found[gid] for gid in gids if gid in found}


def _outcomes_of(statement: Statement) -> Steps[dict[str, Outcome]]:
    """The outcomes by gid. A row with a reason that nobody knows is no outcome, and no reason to fail the others."""
    rows = (yield statement).rows
    if rows and not (isinstance(rows[0][0], str) and isinstance(rows[0][1], str)):
        rows = [(as_text(gid), as_text(reason)) for gid, reason in rows]
    known = queries.OUTCOMES
    return {gid: known[reason] for gid, reason in rows if reason in known}


def _visible_outcome(statement: Statement, gid: str) -> Steps[Outcome | None]:
    return (yield from _outcomes_of(statement)).get(gid)


def _outcome_in_the_way(sql: Dialect, table: str, gid: str) -> Steps[Outcome | None]:
    try:
        return (yield from _visible_outcome(queries.select_outcome(sql, table, gid), gid))
    except Contention:
        return None  # taken, but this transaction's snapshot is too old to see by whom
