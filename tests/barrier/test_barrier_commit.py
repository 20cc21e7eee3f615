"""A commit that fails: told as certain only where it is, and the check-back finds the truth of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parties import DRIVER_ERRORS, Party, Place, kind_params
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from cutting_proxy import Cut, cutting_proxy
from tallystick.barrier import decide, mark_committed


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


FAILURES = (*DRIVER_ERRORS, DBAPIError, OSError)

SERVER_KINDS = [
    "psycopg",
    "async-psycopg",
    "core-postgresql",
    "async-orm-postgresql",
    "pymysql",
    "pymysql-autocommit",
    "core-mysql",
    "orm-mysql",
]
MYSQL_DRIVERS = [
    *("mysqlclient", "mysqlclient-autocommit", "mysql-connector-autocommit", "async-aiomysql"),
    *("async-asyncmy-autocommit", "core-mysqldb-autocommit", "orm-mysqlconnector", "async-orm-asyncmy"),
]
# SQLAlchemy over mysqlclient asks once more before the commit: there the cut would come too early.
CUT_DRIVERS = [kind for kind in MYSQL_DRIVERS if "mysqldb" not in kind]
server_kinds = pytest.mark.parametrize("kind", kind_params([*SERVER_KINDS, *CUT_DRIVERS]))
postgresql_kinds = pytest.mark.parametrize(
    "kind", kind_params(["psycopg", "psycopg-autocommit", "async-psycopg", "orm-postgresql", "async-core-postgresql"])
)
mysql_kinds = pytest.mark.parametrize("kind", kind_params(["pymysql", "core-mysql", *MYSQL_DRIVERS]))
SQLITE_KINDS = [
    *("sqlite3", "sqlite3-autocommit", "core-sqlite", "orm-sqlite", "async-core-sqlite", "async-orm-sqlite"),
    "async-aiosqlite",
]
sqlite_kinds = pytest.mark.parametrize("kind", SQLITE_KINDS)


async def marked(place: Place, gid: str) -> Party:
    party = await place.open()
    await party.begin()
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.run(mark_committed(gid))
    return party


async def failed_commit(party: Party) -> bool:
    """Commit, which must fail; returns whether the failure is certain."""
    with pytest.raises(FAILURES) as caught:
        await party.commit()
    return party.adapter.commit_failure_is_certain(caught.value)


async def truth(place: Place, gid: str) -> tuple[str, list[Any]]:
    checker = await place.open()
    return await checker.run(decide(gid, wait=20)), place.query("select balance from account")


@pytest.fixture
async def through_proxy(place: Place, tmp_path: Path) -> AsyncIterator[tuple[Place, Any]]:
    assert place.server is not None
    with cutting_proxy(place.server.port) as proxy:
        proxied = Place(place.kind, tmp_path, replace(place.server, port=proxy.port))
        yield proxied, proxy
        await proxied.close_quietly()


@server_kinds
@pytest.mark.parametrize(("cut", "outcome"), [("before", "rolled_back"), ("after", "committed")])
async def test_connection_lost_in_the_commit_leaves_the_result_to_the_check_back(
    place: Place, through_proxy: tuple[Place, Any], gid: str, cut: Cut, outcome: str
) -> None:
    proxied, proxy = through_proxy
    party = await marked(proxied, gid)
    proxy.arm(cut)
    assert await failed_commit(party) is False
    answer, rows = await truth(place, gid)
    assert (answer, rows) == (outcome, [(100,)] if outcome == "committed" else [])


SLOW_COMMIT = [
    "create or replace function wait_a_while() returns trigger language plpgsql as "
    "$$ begin perform pg_sleep(30); return new; end $$",
    "create constraint trigger slow_commit after insert on account deferrable initially deferred "
    "for each row execute function wait_a_while()",
]


@postgresql_kinds
async def test_postgresql_backend_killed_in_the_commit(place: Place, gid: str) -> None:
    for statement in SLOW_COMMIT:
        place.query(statement)
    try:
        party = await marked(place, gid)
        commit = asyncio.create_task(failed_commit(party))
        killed: list[Any] = []
        while not killed:
            await asyncio.sleep(0.05)
            killed = place.query(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where wait_event = 'PgSleep' and query ilike 'commit%'"
            )
        assert await commit is False
    finally:
        place.query("drop trigger slow_commit on account")
    assert await truth(place, gid) == ("rolled_back", [])


@mysql_kinds
async def test_mariadb_connection_killed_in_the_commit(place: Place, gid: str) -> None:
    party = await marked(place, gid)
    with closing(place.plain()) as admin:
        admin.cursor().execute("flush tables with read lock")
        commit = asyncio.create_task(failed_commit(party))
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.05)
            found = place.query("select id from information_schema.processlist where lower(info) = 'commit'")
        admin.cursor().execute(f"kill {found[0][0]}")
        assert await commit is False
        # The lock is held until the server has ended the connection: without it, the commit might still go through.
        while found:
            await asyncio.sleep(0.05)
            found = place.query(f"select id from information_schema.processlist where id = {found[0][0]}")
    assert await truth(place, gid) == ("rolled_back", [])


@postgresql_kinds
async def test_commit_refused_by_a_deferred_constraint_is_certain(place: Place, gid: str) -> None:
    place.query(
        "create table pledge (account integer references account (id) deferrable initially deferred)",
    )
    try:
        party = await marked(place, gid)
        await party.execute("insert into pledge (account) values (999)")
        assert await failed_commit(party) is True
        await party.rollback()
    finally:
        place.query("drop table pledge")
    assert await truth(place, gid) == ("rolled_back", [])


@sqlite_kinds
async def test_commit_refused_by_a_reader_is_certain_and_leaves_no_lock(place: Place, gid: str) -> None:
    with closing(place.plain()) as reader:
        party = await marked(place, gid)
        await party.execute("pragma busy_timeout = 100")
        reader.execute("begin")
        reader.execute("select * from tallystick_barrier").fetchall()
        assert await failed_commit(party) is True
        await party.rollback()
        reader.execute("rollback")
    assert await truth(place, gid) == ("rolled_back", [])


@pytest.mark.parametrize("kind", ["sqlite3", "core-sqlite", "async-core-sqlite", "async-aiosqlite"])
async def test_commit_refused_by_a_constraint_is_certain(place: Place, gid: str) -> None:
    place.query("create table pledge (account integer references account (id) deferrable initially deferred)")
    party = await place.open()
    await party.execute("pragma foreign_keys = on")
    await party.rollback()
    await party.begin()
    await party.run(mark_committed(gid))
    await party.execute("insert into pledge (account) values (999)")
    assert await failed_commit(party) is True
    await party.rollback()
    assert await truth(place, gid) == ("rolled_back", [])


@pytest.mark.parametrize("kind", kind_params(["orm-sqlite", "orm-postgresql", "async-orm-postgresql", "orm-mysql"]))
async def test_flush_that_fails_before_the_commit_is_certain(place: Place, gid: str) -> None:
    party = await marked(place, gid)
    party.connection.add(Account(id=1, balance=0))  # the number is taken
    assert await failed_commit(party) is True
    await party.rollback()
    assert await truth(place, gid) == ("rolled_back", [])


async def test_interrupted_commit_is_never_certain(place: Place, gid: str) -> None:
    party = await marked(place, gid)
    await party.commit()
    assert party.adapter.commit_failure_is_certain(KeyboardInterrupt()) is False
    assert party.adapter.commit_failure_is_certain(asyncio.CancelledError()) is False
    assert party.adapter.commit_failure_is_certain(ConnectionResetError()) is False
