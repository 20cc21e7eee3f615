"""What a user's code can do with every driver."""

from __future__ import annotations

from border_hand import Hand, step
from border_kinds import TAKEN, Kind, Seat

NOBODY = "http://127.0.0.1:9/nobody"


# Messages and calls


@step("send")
def _send(hand: Hand) -> None:
    if hand.tx is not None:
        message = hand.attempt.new_message()
        hand.tx.send(hand.topic, message)
        hand.attempt.sent.append(message)


@step("call")
def _call(hand: Hand) -> None:
    if hand.tx is not None:
        hand.tx.call(NOBODY, {"for": hand.attempt.subject})
        hand.attempt.called = True


# Ends of the transaction


@step("commit")
def _commit(hand: Hand) -> None:
    hand.seat.conn.commit()
    hand.attempt.journal.committed_by_user()


@step("rollback")
def _rollback(hand: Hand) -> None:
    hand.seat.conn.rollback()
    hand.attempt.journal.rolled_back_by_user()


@step("sql commit")
def _sql_commit(hand: Hand) -> None:
    hand.run("commit")
    hand.attempt.journal.committed_by_user()


@step("sql rollback")
def _sql_rollback(hand: Hand) -> None:
    hand.run("rollback")
    hand.attempt.journal.rolled_back_by_user()


@step("commit and chain")
def _commit_and_chain(hand: Hand) -> None:
    hand.run("commit and chain")
    hand.attempt.journal.committed_by_user()


@step("sql begin")
def _sql_begin(hand: Hand) -> None:
    hand.run("begin")
    if hand.kind.create_commits:
        hand.attempt.journal.committed_by_user()


@step("ddl")
def _ddl(hand: Hand) -> None:
    hand.run("create table if not exists scratch (note varchar(100))")
    if hand.kind.create_commits:
        hand.attempt.journal.committed_by_user()


# Parts of the transaction, and errors that are ignored


@step("savepoint undone")
def _savepoint_undone(hand: Hand) -> None:
    hand.run("savepoint inner_part")
    row = hand.insert()
    hand.run("rollback to savepoint inner_part")
    hand.attempt.journal.undid(row)


@step("savepoint kept")
def _savepoint_kept(hand: Hand) -> None:
    hand.run("savepoint inner_part")
    hand.insert()
    hand.run("release savepoint inner_part")
    if hand.attempt.journal.ended:  # outside a transaction SQLite begins one with a savepoint, and ends it with that
        hand.attempt.journal.committed_by_user()


@step("back before the block")
def _back_before_the_block(hand: Hand) -> None:
    """To a savepoint that was there before the block."""
    if hand.before is not None:
        since = [row for row in hand.attempt.journal.held if row != hand.before]
        hand.run("rollback to savepoint before_block")
        hand.attempt.journal.undid(*since)
        hand.went_back = True


@step("duplicate")
def _duplicate(hand: Hand) -> None:
    hand.kind.insert(hand.seat.conn, TAKEN)


@step("other schema")
def _other_schema(hand: Hand) -> None:
    """The block goes on in the other place. A handler would take its connection there for good; and an outbox forgets
    that a gid of the user's own was used in another one."""
    attempt = hand.attempt
    if not attempt.letter and (attempt.mode != "outbox" or attempt.subject == attempt.name):
        hand.run(hand.kind.go_to(1 - hand.seat.place))
        hand.seat.place, hand.seat.used_up = 1 - hand.seat.place, True


# Other blocks


@step("nested")
def _nested(hand: Hand) -> None:
    """A block on the connection of this one. Where the user's code has ended the transaction of this one, or has gone
    back to before it was begun, it is like any other that commits or undoes what was written since."""
    ended = hand.attempt.journal.ended or hand.went_back
    told = _small_block(hand, hand.seat)
    if ended and told == "ok":
        hand.attempt.journal.committed_by_user()
    elif ended:
        hand.attempt.journal.settle("maybe")


@step("beside")
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


COMMON = (
    *("insert", "insert", "insert", "send", "send", "call", "duplicate", "ddl", "nested", "beside"),
    *("commit", "rollback", "sql commit", "sql rollback", "sql begin"),
    *("savepoint undone", "savepoint kept", "back before the block"),
)


def steps_of(kind: Kind) -> tuple[str, ...]:
    return tuple(step for step in (*COMMON, *kind.own_steps) if step not in kind.left_out)
