"""What the code of a block may do to a connection of asyncpg's: alone, from a pool, and inside SQLAlchemy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from borders_support import MODES, Mode, Service
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from eventually import eventually
from servers import Server, pgbouncer
from tallystick import AsyncClient, OutcomeUnknown, errors
from tallystick.barrier import TransactionLost, TransactionOpen, UnsupportedConnection
from tallystick.barrier.adapters.recognition import adapt_async

pytestmark = pytest.mark.postgresql

Do = Callable[[Any], Awaitable[object]]


async def nothing(_: Any) -> None:
    pass


def run(sql: str) -> Do:
    return lambda connection: connection.execute(sql)


def run_and_ignore(sql: str) -> Do:
    async def do(connection: Any) -> None:
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.execute(sql)

    return do


@pytest.fixture
async def ts(postgres_service: Service) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(postgres_service.broker.url, group=postgres_service.group, wait=True) as client:
        yield client


@pytest.fixture
async def pool(postgres_service: Service) -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(**postgres_service.bank.asyncpg_parameters(), min_size=1, max_size=2) as made:
        yield made


@pytest.fixture
async def connection(postgres_service: Service) -> AsyncIterator[asyncpg.Connection]:
    made = await asyncpg.connect(**postgres_service.bank.asyncpg_parameters())
    yield made
    await made.close()


async def block(
    ts: AsyncClient, service: Service, connection: Any, note: str, do: Do = nothing, mode: Mode | None = None
) -> None:
    early = bool(mode) and "prepare" in mode
    async with ts.transaction(connection, **(mode or {})) as tx:
        if early:
            tx.send(service.topic, note)
            await tx.prepare()
        await connection.execute("insert into ledger (note) values ($1)", note)
        if not early:
            tx.send(service.topic, note)
        await do(connection)


async def agree(service: Service, *notes: str) -> None:
    await asyncio.to_thread(service.agrees_on, *notes)


async def test_blocks_on_connections_of_a_pool(
    ts: AsyncClient, postgres_service: Service, pool: asyncpg.Pool, mode: Mode
) -> None:
    for note in ("one", "two"):
        async with pool.acquire() as conn:
            await block(ts, postgres_service, conn, note, mode=mode)
    async with pool.acquire() as conn:
        with pytest.raises(ZeroDivisionError):
            await block(ts, postgres_service, conn, "never", lambda _: 1 // 0, mode)  # type: ignore[arg-type,return-value]
    await agree(postgres_service, "one", "two")


async def test_the_drivers_own_block_inside_ours_is_a_savepoint(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection, mode: Mode
) -> None:
    async def nested(conn: Any) -> None:
        async with conn.transaction():
            await conn.execute("insert into ledger (note) values ('kept')")
        with contextlib.suppress(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("insert into ledger (note) values ('undone')")
                raise ZeroDivisionError

    await block(ts, postgres_service, connection, "paid", nested, mode)
    assert postgres_service.bank.notes() == ["kept", "paid"]
    # Afterwards the connection is as it was: this one is a transaction again, not a savepoint.
    async with connection.transaction():
        await connection.execute("insert into ledger (note) values ('alone')")
    assert postgres_service.bank.notes() == ["alone", "kept", "paid"]


ENDED = {
    "commit": run("commit"),
    "rollback": run("rollback"),
    "rollback and chain": run("rollback and chain"),
    "commit, then begin": run("commit; begin"),
    "an error that is ignored": run_and_ignore("select * from no_such_table"),
    "a timeout that is ignored": run_and_ignore("set local statement_timeout = 50; select pg_sleep(5)"),
    "the mark is set": run("set local tallystick.block = 'x'"),
}


@pytest.mark.parametrize("end", [pytest.param(end, marks=[pytest.mark.full] * ("error" not in end)) for end in ENDED])
async def test_a_transaction_that_was_ended_inside_the_block_is_told(
    ts: AsyncClient, postgres_service: Service, pool: asyncpg.Pool, end: str
) -> None:
    for way in ("late", "outbox"):
        async with pool.acquire() as conn:
            with pytest.raises(TransactionLost):
                await block(ts, postgres_service, conn, "ended", ENDED[end], MODES[way])
            assert not conn.is_in_transaction()
            await block(ts, postgres_service, conn, f"next {way}", mode=MODES[way])
    committed_inside = ["ended"] * 2 if end.startswith("commit") else []
    await asyncio.to_thread(eventually, postgres_service.settled)
    assert sorted(postgres_service.bank.notes()) == [*committed_inside, "next late", "next outbox"]
    assert postgres_service.messages() == ["next late", "next outbox"]


async def test_a_commit_that_was_in_truth_a_rollback_is_not_called_a_commit(connection: asyncpg.Connection) -> None:
    """Without the mark before it, which would tell: only the answer to COMMIT does."""
    adapter = adapt_async(connection)
    await adapter.begin()
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("select * from no_such_table")
    with pytest.raises(TransactionLost, match="aborted by an earlier error") as caught:
        await adapter.commit()
    assert adapter.commit_failure_is_certain(caught.value)
    assert not connection.is_in_transaction()


@pytest.mark.full
async def test_the_users_own_transaction_is_not_ours_to_end_and_one_begun_by_hand_is_joined(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection
) -> None:
    async with connection.transaction():
        with pytest.raises(TransactionOpen, match=r"conn\.transaction\(\)"):
            await block(ts, postgres_service, connection, "never")
        await connection.execute("insert into ledger (note) values ('theirs')")
    assert postgres_service.bank.notes() == ["theirs"]
    await connection.execute("begin isolation level serializable")
    await connection.execute("delete from ledger")
    await block(ts, postgres_service, connection, "joined")
    await agree(postgres_service, "joined")


@pytest.mark.full
async def test_a_second_block_on_the_connection_is_refused_and_the_first_goes_on(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection
) -> None:
    async def second(conn: Any) -> None:
        with pytest.raises(TransactionOpen, match="inside another Tallystick block"):
            await block(ts, postgres_service, conn, "never")

    await block(ts, postgres_service, connection, "first", second)
    await agree(postgres_service, "first")


@pytest.mark.full
async def test_of_two_tasks_on_one_connection_at_most_one_commits_and_none_by_half(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection
) -> None:
    ended = await asyncio.gather(
        *(block(ts, postgres_service, connection, f"{number}") for number in range(4)), return_exceptions=True
    )
    done = [str(number) for number, end in enumerate(ended) if end is None]
    assert len(done) <= 1
    assert all(isinstance(end, errors.TallystickError | asyncpg.InterfaceError) for end in ended if end is not None)
    await agree(postgres_service, *done)


async def test_a_statement_of_another_task_at_the_end_of_a_block_undoes_it(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection
) -> None:
    others: list[asyncio.Task[Any]] = []

    async def leave_one_running(conn: Any) -> None:
        others.append(asyncio.ensure_future(conn.execute("select pg_sleep(60)")))
        await asyncio.sleep(0)

    with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
        await block(ts, postgres_service, connection, "never", leave_one_running)
    assert connection.is_closed()  # nobody can commit what was left in it
    await asyncio.gather(*others, return_exceptions=True)
    await agree(postgres_service)


@pytest.mark.full
async def test_a_connection_that_the_block_gives_back_is_not_touched_any_more(
    ts: AsyncClient, postgres_service: Service, pool: asyncpg.Pool
) -> None:
    conn = await pool.acquire()
    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await block(ts, postgres_service, conn, "never", pool.release)
    with pytest.raises(UnsupportedConnection, match="released to its asyncpg pool"):
        await block(ts, postgres_service, conn, "never")
    async with pool.acquire() as next_one:
        await block(ts, postgres_service, next_one, "next")
    await agree(postgres_service, "next")


@pytest.mark.full
async def test_a_connection_that_the_block_closes_has_committed_nothing(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection, mode: Mode
) -> None:
    with pytest.raises(asyncpg.InterfaceError):
        await block(ts, postgres_service, connection, "never", lambda conn: conn.close(), mode)
    await agree(postgres_service)


@pytest.mark.full
async def test_a_constraint_that_is_checked_at_the_commit_fails_the_block_for_certain(
    ts: AsyncClient, postgres_service: Service, connection: asyncpg.Connection, mode: Mode
) -> None:
    postgres_service.bank.run("create table pledge (id int unique deferrable initially deferred)")
    twice = run("insert into pledge values (1), (1)")
    with pytest.raises(asyncpg.UniqueViolationError):
        await block(ts, postgres_service, connection, "never", twice, mode)
    await block(ts, postgres_service, connection, "next", mode=mode)
    await agree(postgres_service, "next")


SLOW_COMMIT = (
    "create function wait_a_while() returns trigger language plpgsql as "
    "$$ begin perform pg_sleep(60); return new; end $$",
    "create constraint trigger slow_commit after insert on ledger deferrable initially deferred "
    "for each row execute function wait_a_while()",
)


@pytest.mark.full
@pytest.mark.parametrize("how", ["command_timeout", "server process killed"])
async def test_a_commit_that_is_cut_off_is_left_to_the_check_back(
    ts: AsyncClient, postgres_service: Service, how: str
) -> None:
    bank = postgres_service.bank
    await ts.send(postgres_service.topic, "warm")
    for statement in SLOW_COMMIT:
        bank.run(statement)
    limits = {"command_timeout": 2.0} if how == "command_timeout" else {}
    connection = await asyncpg.connect(**bank.asyncpg_parameters(), **limits)
    ending = asyncio.ensure_future(block(ts, postgres_service, connection, "slow"))
    if not limits:
        find = "select pid from pg_stat_activity where wait_event = 'PgSleep' and query ilike 'commit%'"
        ((pid,),) = await asyncio.to_thread(eventually, lambda: bank.rows(find))
        os.kill(pid, signal.SIGTERM)
    with pytest.raises(OutcomeUnknown):
        await ending
    await connection.close()
    bank.run("drop trigger slow_commit on ledger")
    await asyncio.to_thread(eventually, postgres_service.settled)
    assert (bank.notes(), postgres_service.messages()) == ([], ["warm"])


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["transaction", "session"])
async def test_blocks_through_a_pooler(
    ts: AsyncClient, postgres_service: Service, postgres: Server, pooling: str
) -> None:
    with pgbouncer(postgres, pooling, default_pool_size="3", server_round_robin="1") as pooler:
        behind = {**postgres_service.bank.asyncpg_parameters(), "port": pooler.port}
        async with asyncpg.create_pool(**behind, min_size=1, max_size=2, statement_cache_size=0) as pool:
            for way in MODES:
                for number in range(3):
                    async with pool.acquire() as conn:
                        await block(ts, postgres_service, conn, f"{way} {number}", mode=MODES[way])
    await agree(postgres_service, *(f"{way} {number}" for way in MODES for number in range(3)))


# SQLAlchemy over asyncpg


@contextlib.asynccontextmanager
async def session_of(service: Service, **options: Any) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(service.bank.url("postgresql+asyncpg"), poolclass=NullPool, **options)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


INSERT = "insert into ledger (note) values ('session')"


async def session_block(ts: AsyncClient, service: Service, session: AsyncSession, do: Do, mode: Mode) -> None:
    async with ts.transaction(session, **mode) as tx:
        tx.send(service.topic, "session")
        if "prepare" in mode:
            await tx.prepare()
        await session.execute(text(INSERT))
        await do(session)


@pytest.mark.full
async def test_a_session_over_asyncpg(ts: AsyncClient, postgres_service: Service, mode: Mode) -> None:
    async with session_of(postgres_service) as session:
        await session_block(ts, postgres_service, session, nothing, mode)
    await agree(postgres_service, "session")


async def swallow(session: AsyncSession) -> None:
    with contextlib.suppress(DBAPIError):
        await session.execute(text("select * from no_such_table"))


SESSION_ENDS: dict[str, Do] = {
    "session.commit": lambda session: session.commit(),
    "session.rollback": lambda session: session.rollback(),
    "commit": lambda session: session.execute(text("commit")),
    "rollback": lambda session: session.execute(text("rollback")),
    "an error that is ignored": swallow,
}


@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=[pytest.mark.full] * ("error" not in end)) for end in SESSION_ENDS]
)
async def test_a_session_whose_transaction_was_ended_says_so(
    ts: AsyncClient, postgres_service: Service, end: str
) -> None:
    async with session_of(postgres_service) as session:
        with pytest.raises(TransactionLost):
            await session_block(ts, postgres_service, session, SESSION_ENDS[end], {})
        await session_block(ts, postgres_service, session, nothing, {})
    await asyncio.to_thread(eventually, postgres_service.settled)
    assert postgres_service.bank.notes() == ["session"] * (2 if "commit" in end else 1)
    assert postgres_service.messages() == ["session"]


async def test_a_hook_that_breaks_the_transaction_just_before_the_commit_is_found_out(
    ts: AsyncClient, postgres_service: Service, mode: Mode
) -> None:
    """The mark was in order; what comes after it only the answer to COMMIT tells."""
    async with session_of(postgres_service) as session:

        @event.listens_for(session.sync_session, "before_commit")
        def break_it(sync_session: Any) -> None:
            with contextlib.suppress(DBAPIError):
                sync_session.connection().exec_driver_sql("select * from no_such_table")

        with pytest.raises(TransactionLost, match="aborted by an earlier error"):
            await session_block(ts, postgres_service, session, nothing, mode)
        event.remove(session.sync_session, "before_commit", break_it)
        await session_block(ts, postgres_service, session, nothing, mode)
    await agree(postgres_service, "session")


@pytest.mark.full
async def test_a_session_in_autocommit_mode_is_refused(ts: AsyncClient, postgres_service: Service) -> None:
    async with session_of(postgres_service, isolation_level="AUTOCOMMIT") as session:
        with pytest.raises(UnsupportedConnection, match="READ COMMITTED"):
            await session_block(ts, postgres_service, session, nothing, {})
    await agree(postgres_service)


@pytest.mark.full
async def test_blocks_do_not_push_the_services_own_statements_out_of_what_is_prepared(
    ts: AsyncClient, postgres_service: Service
) -> None:
    async with session_of(postgres_service) as session:
        await session_block(ts, postgres_service, session, nothing, {})
        prepared = []
        for _ in range(3):
            async with ts.transaction(session):
                found = await session.execute(text("select statement from pg_prepared_statements"))
                prepared.append(sorted(row[0] for row in found))
    assert prepared[1] == prepared[2]
