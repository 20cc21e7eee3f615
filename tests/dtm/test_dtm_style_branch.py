"""The branch barrier: repeated, taken back before it came, and late; in its own transaction or in somebody else's."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from style_bank import Bank, CommitRefused

from servers import Server
from tallystick import errors
from tallystick.barrier import InvalidTableName
from tallystick.dtm import AsyncBranchBarrier, BranchBarrier, Duplicated, Failure, Ongoing

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
ADD = text("update account set balance = balance + 30 where id = 2")


def branch(op: str = "action", gid: str = "gid-1", branch_id: str = "01") -> BranchBarrier:
    return BranchBarrier("saga" if op in ("action", "compensate") else "tcc", gid, branch_id, op)


def run(bank: Bank, barrier: BranchBarrier, amount: int = 30) -> None:
    with bank.connection() as connection:
        barrier.call(connection, lambda used: bank.adjust(used, 2, amount))


def marks(bank: Bank) -> list[tuple[Any, ...]]:
    return bank.rows(
        "select branch_id, op, barrier_id, reason from tallystick_barrier where op <> 'identity' "
        "order by branch_id, op, barrier_id"
    )


def test_a_repeated_branch_has_one_effect(bank: Bank) -> None:
    for _ in range(3):
        run(bank, branch())
    run(bank, branch(branch_id="02"))
    run(bank, branch(gid="gid-2"))
    assert bank.balances() == (10000, 10090)


def test_the_result_of_the_first_is_returned_and_none_after_it(bank: Bank) -> None:
    with bank.connection() as connection:
        assert [branch().call(connection, lambda _: "done") for _ in range(2)] == ["done", None]


def test_a_branch_that_fails_can_be_tried_again(bank: Bank) -> None:
    def fails(connection: Any) -> None:
        bank.adjust(connection, 2, 30)
        raise Failure("not now")

    with bank.connection() as connection:
        with pytest.raises(Failure):
            branch().call(connection, fails)
        assert bank.balances() == (10000, 10000)
        branch().call(connection, lambda used: bank.adjust(used, 2, 30))
    assert bank.balances() == (10000, 10030)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_in_doubt_has_one_effect_when_it_is_tried_again(bank: Bank, when: str) -> None:
    with bank.failing(when) as connection, pytest.raises(CommitRefused):
        branch().call(connection, lambda used: bank.adjust(used, 2, 30))
    run(bank, branch())
    assert bank.balances() == (10000, 10030)


@pytest.mark.parametrize(("op", "undo"), [("action", "compensate"), ("try", "cancel")])
def test_what_was_done_is_undone_once(bank: Bank, op: str, undo: str) -> None:
    run(bank, branch(op))
    for _ in range(2):
        run(bank, branch(undo), -30)
    assert bank.balances() == (10000, 10000)
    assert marks(bank) == sorted([("01", op, "01", op), ("01", undo, "01", undo)])


@pytest.mark.parametrize(("op", "undo"), [("action", "compensate"), ("try", "cancel")])
def test_nothing_is_undone_that_was_not_done_and_a_late_one_is_dropped(bank: Bank, op: str, undo: str) -> None:
    run(bank, branch(undo), -30)
    assert bank.balances() == (10000, 10000)
    run(bank, branch(op))
    run(bank, branch(undo), -30)
    assert bank.balances() == (10000, 10000)
    assert marks(bank) == sorted([("01", op, "01", undo), ("01", undo, "01", undo)])


def test_several_effects_of_one_request_are_counted(bank: Bank) -> None:
    for _ in range(2):
        barrier = branch()
        run(bank, barrier)
        run(bank, barrier)
    assert bank.balances() == (10000, 10060)
    assert marks(bank) == [("01", "action", "01", "action"), ("01", "action", "02", "action")]


def test_two_at_once_have_one_effect(bank: Bank) -> None:
    threads = [threading.Thread(target=run, args=(bank, branch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bank.balances() == (10000, 10030)


def test_an_orm_may_end_the_transaction_itself(bank: Bank) -> None:
    engine = create_engine(bank.url(DRIVERS[bank.engine]))
    told: list[bool] = []
    for ending in ("rollback", "commit", "commit"):
        with Session(engine) as session:
            with branch().once(session) as first:
                told.append(first)
                if first:
                    session.execute(ADD)
            getattr(session, ending)()
    engine.dispose()
    assert told == [True, True, False]
    assert bank.balances() == (10000, 10030)


def test_a_transaction_of_the_driver_is_joined(bank: Bank) -> None:
    for commit in (False, True, True):
        with bank.connection() as connection:
            bank.adjust(connection, 1, -30)
            with branch().once(connection) as first:
                if first:
                    bank.adjust(connection, 2, 30)
            if commit:
                connection.commit()
            else:
                connection.rollback()
    assert bank.balances() == (9940, 10030)


@pytest.mark.postgresql
def test_inside_a_transaction_block_of_psycopg(postgres: Server) -> None:
    bank = Bank("postgresql", postgres)
    for _ in range(2):
        with bank.connection() as connection, connection.transaction(), branch().once(connection) as first:
            if first:
                bank.adjust(connection, 2, 30)
    assert bank.balances() == (10000, 10030)


@pytest.mark.postgresql
async def test_asynchronous_connections(postgres: Server) -> None:
    bank = Bank("postgresql", postgres)
    add = "update account set balance = balance + 30 where id = 2"
    engine = create_async_engine(bank.url("postgresql+psycopg"))
    parameters = postgres.parameters(bank._database)
    async with await psycopg.AsyncConnection.connect(**parameters) as plain, engine.connect() as connection:
        for _ in range(2):
            await AsyncBranchBarrier("msg", "gid-1", "01", "action").call(plain, lambda used: used.execute(add))
            async with AsyncBranchBarrier("msg", "gid-1", "02", "action").once(connection) as first:
                if first:
                    await connection.execute(ADD)
            await connection.commit()
        with pytest.raises(Failure):
            await AsyncBranchBarrier("msg", "gid-2", "00", "msg").query_prepared(plain)
    await engine.dispose()
    assert bank.balances() == (10000, 10060)


def test_query_prepared_tells_the_three_cases(bank: Bank) -> None:
    def message(gid: str) -> BranchBarrier:
        return BranchBarrier("msg", gid, "00", "msg")

    run(bank, message("gid-1"))
    with bank.connection() as connection:
        message("gid-1").query_prepared(connection)
        with pytest.raises(Failure, match="gid-2 is rolled back"):
            message("gid-2").query_prepared(connection)
    with pytest.raises(Duplicated):
        run(bank, message("gid-2"))
    with pytest.raises(Duplicated):
        run(bank, message("gid-1"))
    with (
        bank.connection() as running,
        message("gid-3").once(running),
        bank.connection() as other,
        pytest.raises(Ongoing),
    ):
        message("gid-3").query_prepared(other)
    assert bank.balances() == (10000, 10030)


def test_a_table_of_dtm_can_be_named(bank: Bank) -> None:
    with bank.connection() as connection:
        connection.cursor().execute("create table dtm as select * from tallystick_barrier")
        if bank.engine == "postgresql":
            connection.cursor().execute("alter table dtm add constraint uniq unique (gid, branch_id, op, barrier_id)")
        else:
            connection.cursor().execute("create unique index uniq on dtm (gid, branch_id, op, barrier_id)")
        if bank.engine != "sqlite":
            connection.cursor().execute(
                "alter table dtm drop column id" if bank.engine == "postgresql" else "alter table dtm modify id bigint"
            )
        connection.commit()
    for _ in range(2):
        run(bank, BranchBarrier("msg", "gid-1", "01", "action", table="dtm"))
    assert bank.balances() == (10000, 10030)
    assert bank.rows("select gid, op from dtm where op <> 'identity'") == [("gid-1", "action")]


QUERY = {"trans_type": "msg", "gid": "gid-1", "branch_id": "01", "op": "action"}


@pytest.mark.parametrize("query", [QUERY, {name: [value] for name, value in QUERY.items()}])
def test_a_query_is_read_in_every_form(query: dict[str, Any]) -> None:
    assert repr(BranchBarrier.from_query(query)) == "BranchBarrier('msg', 'gid-1', '01', 'action')"
    params = {"amount": 30, "nested": {"gid": "other"}, **QUERY}  # of a JSON-RPC call
    assert BranchBarrier.from_query(params).gid == "gid-1"
    metadata = [("dtm-dtm", ""), ("other", "x"), *((f"dtm-{name}", value) for name, value in QUERY.items())]
    assert BranchBarrier.from_metadata(metadata).gid == "gid-1"


@pytest.mark.parametrize(
    "change",
    [
        {"gid": ""},
        {"gid": None},
        {"gid": "no spaces"},
        {"gid": ["a", "b"]},
        {"op": "x" * 46},
        {"branch_id": "x" * 129},
        {"trans_type": "\x00"},
        {"op": "msg"},
    ],
)
def test_a_query_that_names_no_branch_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        BranchBarrier.from_query({**QUERY, **change})


def test_what_comes_from_outside_is_never_part_of_the_statement(one_bank: Bank) -> None:
    evil = "01'); drop table account; --"
    run(one_bank, BranchBarrier("msg", "gid-1", evil, "action"))
    assert one_bank.balances() == (10000, 10030)
    assert one_bank.rows("select branch_id from tallystick_barrier where op <> 'identity'") == [(evil,)]
    with pytest.raises(InvalidTableName):
        BranchBarrier("msg", "gid-1", "01", "action", table="t; drop table account")
