"""Connections of every kind: recognised, begun, ended and opened again in the same way."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql.cursors
import pytest
from parties import ALWAYS_AUTOCOMMIT, DRIVER_ERRORS, KINDS, Party, Place, kind_params
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import pg8000
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from servers import PASSWORD
from tallystick.barrier import (
    TransactionLost,
    TransactionOpen,
    UnsupportedConnection,
    adapt,
    adapt_async,
    adapt_sync,
    create_tables,
    decide,
    decide_many,
    mark_committed,
    outbox_claim,
    outbox_put,
    prepared_put,
    prepared_take,
    run_sync,
)
from tallystick.barrier.operations.identity import ensure_identity
from tallystick.barrier.operations.tether import require_tied, tie

CLOSED_KINDS = ["psycopg2", "psycopg2-autocommit", "async-asyncpg"]
CLOSED_KINDS += ["mysqlclient", "mysql-connector-autocommit", "async-aiomysql", "async-asyncmy-autocommit"]
AUTOCOMMIT_KINDS = ["sqlite3-autocommit", "psycopg-autocommit", "pymysql-autocommit", "core-mariadb-autocommit"]
AUTOCOMMIT_KINDS += ["psycopg2-autocommit", *ALWAYS_AUTOCOMMIT]


async def test_adapter_knows_its_engine_and_kind(place: Place) -> None:
    adapter = (await place.open()).adapter
    assert adapter.dialect.name == KINDS[place.kind]
    assert adapter.is_async is place.kind.startswith("async-")


def test_unknown_connection_is_refused_with_a_list_of_the_known() -> None:
    with pytest.raises(UnsupportedConnection, match=r"sqlite3\.Connection, .*psycopg\.Connection.*AsyncSession"):
        adapt(object())


async def test_sync_and_async_are_not_mixed_up(place: Place) -> None:
    refuse, word = (adapt_sync, "async") if place.kind.startswith("async-") else (adapt_async, "sync")
    with pytest.raises(UnsupportedConnection, match=f"is an? {word} connection"):
        refuse((await place.open()).connection)


async def test_async_connection_that_is_not_started_is_refused(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(UnsupportedConnection, match="not started"):
        adapt(engine.connect())
    await engine.dispose()


def test_sessions_of_a_registry_and_subclasses_are_recognised(tmp_path: Path) -> None:
    class Mine(sqlite3.Connection):
        pass

    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, factory=Mine)) as mine:
        create_tables(mine)
    engine = create_engine(f"sqlite:///{path}")
    registry = scoped_session(sessionmaker(engine))
    assert run_sync(adapt_sync(registry), decide("gid")) == "rolled_back"
    registry.remove()
    engine.dispose()


async def test_sessions_of_an_async_registry_are_recognised(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    registry: async_scoped_session[AsyncSession] = async_scoped_session(
        async_sessionmaker(engine), scopefunc=asyncio.current_task
    )
    assert adapt_async(registry).dialect.name == "sqlite"
    await registry.remove()
    await engine.dispose()


def test_sqlalchemy_driver_that_hides_its_transaction_is_refused() -> None:
    engine = create_engine("sqlite://")
    engine.dialect = pg8000.dialect()
    with Session(engine) as session, pytest.raises(UnsupportedConnection, match=r"postgresql\+pg8000 is not"):
        adapt(session)


def test_no_driver_is_needed_but_the_one_in_use(tmp_path: Path) -> None:
    code = """
import sys
for name in ("psycopg", "psycopg2", "asyncpg", "pymysql", "sqlalchemy"):
    sys.modules[name] = None
import sqlite3
from tallystick.barrier import adapt_sync, create_tables, decide, run_sync
connection = sqlite3.connect(sys.argv[1])
create_tables(connection)
print(run_sync(adapt_sync(connection), decide("gid")))
connection.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.db")], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("rolled_back", "")


def like_their_own(connection: Any) -> Any:
    """The settings services like to have for their own rows."""
    if isinstance(connection, sqlite3.Connection):
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
    elif isinstance(connection, psycopg.Connection):
        connection.row_factory = dict_row
    else:
        connection.cursorclass = pymysql.cursors.SSDictCursor
    return connection


@pytest.mark.parametrize("kind", kind_params(["sqlite3", "psycopg", "pymysql"]))
async def test_row_factories_of_the_service_make_no_difference(place: Place, gid: str) -> None:
    with closing(like_their_own(place.plain())) as connection:
        adapter = adapt_sync(connection)
        adapter.begin()
        run_sync(adapter, mark_committed(gid))
        run_sync(adapter, outbox_put(gid, "broker", b"\x00\xff"))
        run_sync(adapter, prepared_put("group", gid, b"\x00\xff"))
        assert run_sync(adapter, prepared_take("group", gid)) == b"\x00\xff"
        adapter.commit()
        assert run_sync(adapter, decide_many([gid])) == {gid: "committed"}
        row = run_sync(adapter, outbox_claim(older_than=0))[0]
        assert (row.gid, row.broker, row.payload, row.state) == (gid, "broker", b"\x00\xff", "commit")
        here = run_sync(adapter, ensure_identity())
        assert (here.identity, here.source(adapter.address)) != ("", "")


async def test_what_the_service_did_before_begin_belongs_to_the_transaction(place: Place, gid: str) -> None:
    party = await place.open()
    if place.kind.endswith("-autocommit") or place.kind in ALWAYS_AUTOCOMMIT:
        await party.execute("begin")
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.begin()
    await party.run(mark_committed(gid))
    await party.rollback()
    assert place.query("select * from account") == []
    assert place.query("select * from tallystick_barrier where op = 'msg'") == []


async def test_transaction_in_which_nothing_happened_commits(place: Place) -> None:
    party = await place.open()
    for _ in range(2):
        await party.begin()
        await party.commit()
        assert not await party.in_transaction()
    await party.rollback()


@pytest.mark.parametrize("kind", kind_params([k for k in KINDS if KINDS[k] == "postgresql"]))
async def test_transaction_that_an_ignored_error_aborted_does_not_commit(place: Place, gid: str) -> None:
    party = await place.open()
    await party.begin()
    await party.run(mark_committed(gid))
    with pytest.raises(Exception, match="no_such_table"):
        await party.execute("select * from no_such_table")
    with pytest.raises(TransactionLost, match="aborted by an earlier error") as caught:
        await party.commit()
    assert party.adapter.commit_failure_is_certain(caught.value) is True
    await party.rollback()
    assert await party.run(decide(gid)) == "rolled_back"


@pytest.mark.parametrize("kind", kind_params([*AUTOCOMMIT_KINDS, "sqlite3", "core-sqlite", "psycopg", "psycopg2"]))
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_transaction_that_was_ended_in_its_middle_does_not_commit(place: Place, gid: str, end: str) -> None:
    party = await place.open()
    await party.begin()
    await party.run(mark_committed(gid))
    await party.execute(end)
    with pytest.raises(TransactionLost, match="ended before its commit") as caught:
        await party.commit()
    assert party.adapter.commit_failure_is_certain(caught.value) is False
    await party.rollback()
    assert await party.run(decide(gid)) == ("committed" if end == "commit" else "rolled_back")


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_the_next_transaction_is_not_taken_for_the_one_that_was_begun(place: Place, end: str) -> None:
    party = await place.open()
    await party.begin()
    await party.run(tie("0a"))
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.run(require_tied("0a"))
    await party.run(tie("0a"))
    await party.do(end)
    await party.begin()
    await party.execute("insert into account (id, balance) values (2, 100)")
    assert await party.in_transaction()
    with pytest.raises(TransactionLost, match="ended before its commit"):
        await party.run(require_tied("0a"))
    await party.rollback()


@pytest.mark.parametrize("kind", kind_params(["psycopg", "async-psycopg", *ALWAYS_AUTOCOMMIT]))
async def test_transaction_block_of_the_driver_is_not_ours_to_end(place: Place) -> None:
    party = await place.open()
    connection = party.connection
    if place.kind == "psycopg":
        with connection.transaction(), pytest.raises(TransactionOpen, match=r"conn\.transaction\(\)"):
            await party.begin()
    else:
        async with connection.transaction():
            with pytest.raises(TransactionOpen, match=r"conn\.transaction\(\)"):
                await party.begin()


async def test_source_names_the_database_without_secrets(place: Place) -> None:
    sources = []
    for party in (await place.open(), await place.open()):
        await party.begin()
        sources.append(await party.source())
        await party.rollback()
    addresses = {
        "sqlite": f"sqlite:{place.file}#/",
        "postgresql": f"postgresql://127.0.0.1:{place.server and place.server.port}/service#public/",
        "mysql": f"mysql://127.0.0.1:{place.server and place.server.port}#service/",
    }
    ((identity,),) = place.query("select reason from tallystick_barrier where op = 'identity'")
    assert sources == [addresses[place.engine] + identity] * 2
    assert PASSWORD not in sources[0]


async def test_opener_reaches_the_same_database(place: Place, gid: str) -> None:
    party = await place.open()
    await party.begin()
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.run(mark_committed(gid))
    checker = await party.open_another()
    if place.kind.startswith("mysqlclient"):  # it does not tell its password
        assert checker is None
        return
    assert checker is not None
    assert await checker.run(decide(gid, wait=0.1)) == "running"
    await party.commit()
    assert await checker.run(decide(gid)) == "committed"
    assert await _source(checker) == await _source(party)
    await checker.close()


async def _source(party: Party) -> str:
    await party.begin()
    source = await party.source()
    await party.rollback()
    return source


def test_database_in_memory_has_no_second_connection() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        adapter = adapt_sync(connection)
        assert (adapter.opener(), adapter.address) == (None, "sqlite::memory:")
    engine = create_engine("sqlite://")
    with engine.connect() as alchemy:
        adapter = adapt_sync(alchemy)
        adapter.begin()
        assert (adapter.opener(), adapter.address) == (None, "sqlite::memory:")
        adapter.rollback()
    engine.dispose()


def test_pool_of_one_connection_has_no_second_connection(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", poolclass=StaticPool)
    with engine.connect() as connection:
        adapter = adapt_sync(connection)
        adapter.begin()
        assert adapter.opener() is None
        adapter.rollback()
    engine.dispose()


if sys.version_info >= (3, 12):

    @pytest.mark.parametrize("autocommit", [True, False])
    def test_transaction_modes_of_newer_sqlite3(tmp_path: Path, autocommit: bool) -> None:
        path = tmp_path / "x.db"
        with closing(sqlite3.connect(path)) as plain, closing(sqlite3.connect(path, autocommit=autocommit)) as new:
            create_tables(plain)
            adapter = adapt_sync(new)
            adapter.begin()
            run_sync(adapter, mark_committed("rolled-back"))
            adapter.rollback()
            adapter.begin()
            run_sync(adapter, mark_committed("committed"))
            adapter.commit()
            answers = run_sync(adapt_sync(plain), decide_many(["rolled-back", "committed"]))
            assert answers == {"rolled-back": "rolled_back", "committed": "committed"}

    def test_sqlite3_that_ignores_commit_is_refused_through_sqlalchemy(tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", connect_args={"autocommit": True})
        with engine.connect() as connection, pytest.raises(UnsupportedConnection, match="autocommit=True"):
            adapt_sync(connection).begin()
        engine.dispose()


@pytest.mark.parametrize("kind", kind_params(["sqlite3", "psycopg", "async-psycopg", "pymysql", *CLOSED_KINDS]))
async def test_closed_connection_gives_the_error_of_its_driver(place: Place, gid: str) -> None:
    party = await place.open()
    await party.begin()
    await party.run(mark_committed(gid))
    await party.do("close")
    with pytest.raises(DRIVER_ERRORS) as caught:
        await party.commit()
    assert party.adapter.commit_failure_is_certain(caught.value) is False
    with pytest.raises(DRIVER_ERRORS):
        await party.run(decide(gid))
    place.forget(party)


def test_opener_does_not_make_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "gone.db"
    with closing(sqlite3.connect(path)) as connection:
        opener = adapt_sync(connection).opener()
    path.unlink()
    assert opener is not None
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        opener()
    assert not path.exists()
