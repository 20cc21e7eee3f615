"""What only some drivers have, or do in their own way."""

from __future__ import annotations

from contextlib import suppress

from border_deadlock import lose_a_deadlock
from border_hand import Hand, step
from border_kinds import TAKEN
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


@step("with conn")
def _with_conn(hand: Hand) -> None:
    """sqlite3 commits at its end; psycopg and PyMySQL commit, or do not, and close."""
    hand.attempt.journal.committed_by_user()
    with hand.seat.conn:
        hand.insert()
    hand.attempt.journal.committed_by_user()


@step("script")
def _script(hand: Hand) -> None:
    hand.attempt.journal.committed_by_user()
    hand.seat.conn.executescript(f"insert into ledger values ('{hand.new_row()}');")


@step("conn.transaction")
def _conn_transaction(hand: Hand) -> None:
    """A savepoint in a transaction, and a transaction that commits where there is none."""
    with hand.seat.conn.transaction():
        hand.insert()
    if hand.attempt.journal.ended:
        hand.attempt.journal.committed_by_user()


@step("conn.transaction fails")
def _conn_transaction_fails(hand: Hand) -> None:
    row = ""
    with suppress(ZeroDivisionError), hand.seat.conn.transaction():
        row = hand.insert()
        raise ZeroDivisionError
    hand.attempt.journal.undid(row)


@step("deadlock")
def _deadlock(hand: Hand) -> None:
    if lose_a_deadlock(hand.kind, hand.seat):
        hand.attempt.journal.rolled_back_by_user()


class _Base(DeclarativeBase):
    pass


class Ledger(_Base):
    __tablename__ = "ledger"
    note: Mapped[str] = mapped_column(primary_key=True)


@step("begin_nested")
def _begin_nested(hand: Hand) -> None:
    with hand.seat.conn.begin_nested():
        hand.insert()


@step("begin_nested fails")
def _begin_nested_fails(hand: Hand) -> None:
    row = ""
    with suppress(ZeroDivisionError), hand.seat.conn.begin_nested():
        row = hand.insert()
        raise ZeroDivisionError
    hand.attempt.journal.undid(row)


@step("pending")
def _pending(hand: Hand) -> None:
    """An object that is written only when the session commits."""
    row = hand.new_row()
    hand.seat.conn.add(Ledger(note=row))
    hand.attempt.journal.wrote(row)


@step("pending duplicate")
def _pending_duplicate(hand: Hand) -> None:
    """The same, and it will fail then."""
    hand.seat.conn.add(Ledger(note=TAKEN))


@step("session.close")
def _session_close(hand: Hand) -> None:
    hand.seat.conn.close()
    hand.attempt.journal.rolled_back_by_user()
