"""What a user's code can do in the middle of a block or a handler, each thing by its name.

Errors are swallowed by whoever plays the steps, as a careless user's code would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from border_deadlock import lose_a_deadlock
from border_kinds import TAKEN, Kind, Seat
from border_model import Attempt
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

if TYPE_CHECKING:
    from border_play import Play

NOBODY = "http://127.0.0.1:9/nobody"


@dataclass
class Hand:
    """What the user's code has in its hands."""

    play: Play
    kind: Kind
    seat: Seat
    attempt: Attempt
    tx: Any = None
    topic: str = ""
    rows: int = 0
    before: str | None = None
    """The row that was written before the block, with a savepoint after it."""
    went_back: bool = False

    def new_row(self) -> str:
        self.rows += 1
        return f"{self.attempt.name}.{self.rows}"

    def insert(self) -> str:
        row = self.new_row()
        self.kind.insert(self.seat.conn, row)
        self.attempt.journal.wrote(row)
        return row

    def send(self) -> None:
        message = self.attempt.new_message()
        self.tx.send(self.topic, message)
        self.attempt.sent.append(message)

    def run(self, sql: str) -> None:
        self.kind.run(self.seat.conn, sql)

    def do(self, step: str) -> None:
        try:
            STEPS[step](self)
        except Exception as failure:
            self.attempt.note(step, failure)
        else:
            self.attempt.log.append(step)


# Messages and calls


def _send(hand: Hand) -> None:
    if hand.tx is not None:
        hand.send()


def _call(hand: Hand) -> None:
    if hand.tx is not None:
        hand.tx.call(NOBODY, {"for": hand.attempt.subject})
        hand.attempt.called = True


# Ends of the transaction


def _commit(hand: Hand) -> None:
    hand.seat.conn.commit()
    hand.attempt.journal.committed_by_user()


def _rollback(hand: Hand) -> None:
    hand.seat.conn.rollback()
    hand.attempt.journal.rolled_back_by_user()


def _sql_commit(hand: Hand) -> None:
    hand.run("commit")
    hand.attempt.journal.committed_by_user()


def _sql_rollback(hand: Hand) -> None:
    hand.run("rollback")
    hand.attempt.journal.rolled_back_by_user()


def _commit_and_chain(hand: Hand) -> None:
    hand.run("commit and chain")
    hand.attempt.journal.committed_by_user()


def _sql_begin(hand: Hand) -> None:
    hand.run("begin")
    if hand.kind.create_commits:
        hand.attempt.journal.committed_by_user()


def _ddl(hand: Hand) -> None:
    hand.run("create table if not exists scratch (note varchar(100))")
    if hand.kind.create_commits:
        hand.attempt.journal.committed_by_user()


# Parts of the transaction, and errors that are ignored


def _savepoint_undone(hand: Hand) -> None:
    hand.run("savepoint inner_part")
    row = hand.insert()
    hand.run("rollback to savepoint inner_part")
    hand.attempt.journal.undid(row)


def _savepoint_kept(hand: Hand) -> None:
    hand.run("savepoint inner_part")
    hand.insert()
    hand.run("release savepoint inner_part")
    if hand.attempt.journal.ended:  # outside a transaction SQLite begins one with a savepoint, and ends it with that
        hand.attempt.journal.committed_by_user()


def _back_before_the_block(hand: Hand) -> None:
    """To a savepoint that was there before the block."""
    if hand.before is not None:
        since = [row for row in hand.attempt.journal.held if row != hand.before]
        hand.run("rollback to savepoint before_block")
        hand.attempt.journal.undid(*since)
        hand.went_back = True


def _duplicate(hand: Hand) -> None:
    hand.kind.insert(hand.seat.conn, TAKEN)


def _other_schema(hand: Hand) -> None:
    """The block goes on in the other place. A handler would take its connection there for good; and an outbox forgets
    that a gid of the user's own was used in another one."""
    attempt = hand.attempt
    if not attempt.letter and (attempt.mode != "outbox" or attempt.subject == attempt.name):
        hand.run(hand.kind.go_to(1 - hand.seat.place))
        hand.seat.place, hand.seat.used_up = 1 - hand.seat.place, True


# Other blocks


def _nested(hand: Hand) -> None:
    """A block on the connection of this one. Where the user's code has ended the transaction of this one, or has gone
    back to before it was begun, it is like any other that commits or undoes what was written since."""
    ended = hand.attempt.journal.ended or hand.went_back
    told = _small_block(hand, hand.seat)
    if ended and told == "ok":
        hand.attempt.journal.committed_by_user()
    elif ended:
        hand.attempt.journal.settle("maybe")


def _beside(hand: Hand) -> None:
    """A block on another connection, to the other place."""
    place = 1 - hand.seat.place
    if not hand.play.would_wait(place):
        _small_block(hand, hand.play.open_seat(place, hand.kind.variants[0]))


def _small_block(hand: Hand, seat: Seat) -> str:
    block = hand.play.enter(seat, "late")
    if block is None:
        return "refused"
    block.hand.do("insert")
    block.hand.do("send")
    hand.play.leave(block, "return")
    return block.hand.attempt.told


# What only some drivers have


def _with_conn(hand: Hand) -> None:
    """sqlite3 commits at its end; psycopg and PyMySQL commit, or do not, and close."""
    hand.attempt.journal.committed_by_user()
    with hand.seat.conn:
        hand.insert()
    hand.attempt.journal.committed_by_user()


def _script(hand: Hand) -> None:
    hand.attempt.journal.committed_by_user()
    hand.seat.conn.executescript(f"insert into ledger values ('{hand.new_row()}');")


def _conn_transaction(hand: Hand) -> None:
    """A savepoint in a transaction, and a transaction that commits where there is none."""
    with hand.seat.conn.transaction():
        hand.insert()
    if hand.attempt.journal.ended:
        hand.attempt.journal.committed_by_user()


def _conn_transaction_fails(hand: Hand) -> None:
    row = ""
    with suppress(ZeroDivisionError), hand.seat.conn.transaction():
        row = hand.insert()
        raise ZeroDivisionError
    hand.attempt.journal.undid(row)


def _deadlock(hand: Hand) -> None:
    if lose_a_deadlock(hand.kind, hand.seat):
        hand.attempt.journal.rolled_back_by_user()


class _Base(DeclarativeBase):
    pass


class Ledger(_Base):
    __tablename__ = "ledger"
    note: Mapped[str] = mapped_column(primary_key=True)


def _begin_nested(hand: Hand) -> None:
    with hand.seat.conn.begin_nested():
        hand.insert()


def _begin_nested_fails(hand: Hand) -> None:
    row = ""
    with suppress(ZeroDivisionError), hand.seat.conn.begin_nested():
        row = hand.insert()
        raise ZeroDivisionError
    hand.attempt.journal.undid(row)


def _pending(hand: Hand) -> None:
    """An object that is written only when the session commits."""
    row = hand.new_row()
    hand.seat.conn.add(Ledger(note=row))
    hand.attempt.journal.wrote(row)


def _pending_duplicate(hand: Hand) -> None:
    """The same, and it will fail then."""
    hand.seat.conn.add(Ledger(note=TAKEN))


def _session_close(hand: Hand) -> None:
    hand.seat.conn.close()
    hand.attempt.journal.rolled_back_by_user()


STEPS: dict[str, Callable[[Hand], Any]] = {
    "insert": Hand.insert,
    "send": _send,
    "call": _call,
    "commit": _commit,
    "rollback": _rollback,
    "sql commit": _sql_commit,
    "sql rollback": _sql_rollback,
    "sql begin": _sql_begin,
    "commit and chain": _commit_and_chain,
    "ddl": _ddl,
    "savepoint undone": _savepoint_undone,
    "savepoint kept": _savepoint_kept,
    "back before the block": _back_before_the_block,
    "duplicate": _duplicate,
    "other schema": _other_schema,
    "nested": _nested,
    "beside": _beside,
    "with conn": _with_conn,
    "script": _script,
    "conn.transaction": _conn_transaction,
    "conn.transaction fails": _conn_transaction_fails,
    "deadlock": _deadlock,
    "begin_nested": _begin_nested,
    "begin_nested fails": _begin_nested_fails,
    "pending": _pending,
    "pending duplicate": _pending_duplicate,
    "session.close": _session_close,
}

COMMON = (
    *("insert", "insert", "insert", "send", "send", "call", "duplicate", "ddl", "nested", "beside"),
    *("commit", "rollback", "sql commit", "sql rollback", "sql begin"),
    *("savepoint undone", "savepoint kept", "back before the block"),
)


def steps_of(kind: Kind) -> tuple[str, ...]:
    return (*COMMON, *kind.own_steps)
