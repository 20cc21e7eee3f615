"""Creating the tables, and what happens where they are missing or cannot be written."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from multiprocessing.synchronize import Barrier as Meeting
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from parties import TABLES, Place, kind_params, plain_kinds
from sqlalchemy import create_engine, text

from servers import Server
from tallystick.barrier import (
    DatabaseReadOnly,
    TablesMissing,
    TransactionOpen,
    adapt_sync,
    create_all,
    create_tables,
    decide,
    decide_many,
    first_time,
    mark_committed,
    outbox_claim,
    outbox_put,
    prepared_put,
    read_offset,
    run_sync,
    table_definitions,
)
from tallystick.barrier.operations.tables import create_here


async def test_tables_can_be_created_again_over_every_driver(place: Place) -> None:
    party = await place.open()
    await party.begin()
    await party.run(mark_committed("kept"))
    await party.commit()
    await party.run(create_all())
    await party.run(create_all())
    assert place.query("select gid from tallystick_barrier where op = 'msg'") == [("kept",)]


async def test_tables_are_not_created_inside_a_transaction_of_the_caller(place: Place) -> None:
    party = await place.open()
    await party.begin()
    await party.execute("insert into account (id, balance) values (1, 100)")
    with pytest.raises(TransactionOpen, match="no transaction open"):
        await party.run(create_all())
    await party.rollback()
    assert place.query("select * from account") == []


async def test_tables_are_created_in_a_transaction_of_the_caller_where_the_engine_can(place: Place) -> None:
    for table in TABLES:
        place.query(f"drop table {table}")
    party = await place.open()
    await party.begin()
    await party.execute("insert into account (id, balance) values (1, 100)")
    if place.engine == "mysql":
        with pytest.raises(TransactionOpen, match=r"create_tables: MySQL .*mysql\.sql .*table_definitions\('mysql'\)"):
            await party.run(create_here())
        await party.rollback()
        assert place.query("select * from account") == []
        return
    await party.run(create_here())
    await party.run(create_here())
    await party.commit()
    assert place.query("select balance from account") == [(100,)]
    assert len(place.query("select reason from tallystick_barrier where op = 'identity'")) == 1
    again = await place.open()
    await again.begin()
    await again.run(mark_committed("works"))
    await again.commit()


@pytest.mark.postgresql
def test_tables_go_with_the_transaction_that_made_them(postgres: Server) -> None:
    with psycopg.connect(**postgres.parameters(postgres.new_database())) as connection:
        connection.execute("create table before_them (id int)")
        create_tables(connection)
        connection.rollback()
        found = connection.execute("select count(*) from pg_tables where tablename like 'tallystick%'").fetchone()
        assert found == (0,)
        create_tables(connection)
        run_sync(adapt_sync(connection), mark_committed("works"))


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgresql)])
def test_tables_are_created_inside_of_engine_begin(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As migrations of Alembic run."""
    url = f"sqlite:///{tmp_path / 'service.db'}"
    if engine == "postgres":
        server = request.getfixturevalue("postgres")
        url = server.url("postgresql+psycopg", server.new_database())
    made = create_engine(url)
    with made.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
        create_tables(connection)
        connection.execute(text("insert into orders values (1)"))
    with made.connect() as connection:
        run_sync(adapt_sync(connection), mark_committed("works"))
        connection.commit()
        assert connection.execute(text("select count(*) from orders")).scalar() == 1
    made.dispose()


def connect(target: Any) -> Any:
    if isinstance(target, str):
        return sqlite3.connect(target, isolation_level=None)
    connect_to = psycopg.connect if "dbname" in target else pymysql.connect
    return connect_to(**target, autocommit=True)


def create_in_each(targets: list[Any], meeting: Meeting, failures: Any) -> None:
    for target in targets:
        with closing(connect(target)) as connection:
            meeting.wait(60)
            try:
                create_tables(connection)
            except Exception as error:
                failures.put(repr(error))


@pytest.mark.parametrize("kind", [*kind_params(["psycopg"]), *kind_params(["sqlite3", "pymysql"], full=True)])
async def test_processes_may_create_the_tables_at_once(place: Place, tmp_path: Path) -> None:
    server = place.server
    targets: list[Any] = [str(tmp_path / f"new-{index}.db") for index in range(4)]
    if server is not None:
        targets = [server.parameters(server.new_database()) for _ in range(4)]
    spawn = multiprocessing.get_context("spawn")
    meeting, failures = spawn.Barrier(3), spawn.Queue()
    processes = [spawn.Process(target=create_in_each, args=(targets, meeting, failures)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert failures.empty()
    failures.close()
    failures.join_thread()
    for target in targets:
        with closing(connect(target)) as connection:
            run_sync(adapt_sync(connection), mark_committed("works"))


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql"])
def test_every_table_is_in_the_documented_file(engine: str) -> None:
    text = "\n".join(table_definitions(engine))
    assert [table for table in TABLES if f"create table if not exists {table} (" not in text] == []


@plain_kinds
async def test_missing_table_is_an_error_and_never_an_outcome(place: Place, gid: str) -> None:
    for table in TABLES:
        place.query(f"drop table {table}")
    party = await place.open()
    for operation in (decide(gid), decide_many([gid]), outbox_claim(older_than=0)):
        with pytest.raises(TablesMissing, match=r"create_tables\(conn\)"):
            await party.run(operation)
    for operation in (
        mark_committed(gid),
        first_time("group", gid),
        read_offset("group", "store", "topic", 0),
        outbox_put(gid, "broker", b""),
        prepared_put("group", gid, b""),
    ):
        await party.begin()
        with pytest.raises(TablesMissing, match="tallystick_"):
            await party.run(operation)
        await party.rollback()
    await party.run(create_all())
    assert await party.run(decide(gid)) == "rolled_back"


@plain_kinds
async def test_missing_schema_is_an_error_and_never_an_outcome(place: Place, gid: str) -> None:
    party = await place.open()
    with pytest.raises(TablesMissing):
        await party.run(decide(gid, table="no_such_schema.barrier"))


READ_ONLY = {
    "sqlite": "pragma query_only = on",
    "postgresql": "set session characteristics as transaction read only",
    "mysql": "set session transaction read only",
}


@plain_kinds
async def test_read_only_database_is_an_error_unless_the_outcome_is_known(place: Place, gid: str) -> None:
    party = await place.open()
    await party.begin()
    await party.run(mark_committed(f"{gid}-known"))
    await party.commit()
    await party.execute(READ_ONLY[place.engine])
    await party.do("commit" if place.engine == "postgresql" else "rollback")
    with pytest.raises(DatabaseReadOnly, match="primary"):
        await party.run(decide(gid))
    assert await party.run(decide(f"{gid}-known")) == "committed"
    assert place.query("select gid from tallystick_barrier where op = 'msg'") == [(f"{gid}-known",)]
