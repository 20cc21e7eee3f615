"""What the code of a block runs on its connection: settings, timeouts, constraints and cursors."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pymysql
import pymysql.cursors
import pytest
from borders_support import MARIADB, MODES, POSTGRES, Mode, Service, run, run_and_ignore

from tallystick import errors
from tallystick.barrier.errors import DatabaseReadOnly, TransactionLost, UnsupportedConnection

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]

HARMLESS = {
    "postgresql": [
        "select pg_advisory_xact_lock(7)",
        "select pg_advisory_lock(7)",
        "lock table ledger",
        "set transaction read write",
        "set session characteristics as transaction isolation level serializable",
        "set local standard_conforming_strings = off",
        "set constraints all immediate",
        "listen news",
        "notify news",
        "discard temp",
    ],
    "mysql": [
        "select get_lock('seven', 1)",
        "set session transaction isolation level read uncommitted",
        "set session tx_read_only = 1",
        "set sql_mode = 'ANSI_QUOTES'",
        "create temporary table scratch (i int)",
        "unlock tables",
        "set autocommit = 0",
    ],
}


def test_settings_and_locks_of_a_block_do_not_matter_to_its_end(server_service: Service) -> None:
    statements = HARMLESS[server_service.bank.engine]
    for statement in statements:
        with server_service.bank.connection() as connection:
            server_service.block(connection, statement, run(statement))
    server_service.agrees_on(*statements)


REFUSED: list[tuple[str, str, type[Exception]]] = [
    (POSTGRES, "set transaction isolation level serializable", psycopg.errors.ActiveSqlTransaction),
    (POSTGRES, "set transaction read only", DatabaseReadOnly),
    (POSTGRES, "set local search_path to pg_catalog", errors.TallystickError),
    (POSTGRES, "reset all", TransactionLost),
    (POSTGRES, "set local tallystick.block = 'x'", TransactionLost),
    (POSTGRES, "rollback and chain", TransactionLost),
    (POSTGRES, "set local statement_timeout = 50; select pg_sleep(5)", psycopg.errors.QueryCanceled),
    (MARIADB, "set transaction isolation level serializable", pymysql.err.OperationalError),
    (MARIADB, "use mysql", errors.TallystickError),
    (MARIADB, "rollback and chain", TransactionLost),
]


@pytest.mark.parametrize(("kind", "statement", "error"), REFUSED)
def test_what_takes_the_transaction_or_its_tables_away_fails_the_block(
    request: pytest.FixtureRequest, kind: str, statement: str, error: type[Exception]
) -> None:
    service: Service = request.getfixturevalue(kind)
    for mode in ("late", "outbox"):
        with service.bank.connection() as connection, pytest.raises(error):
            service.block(connection, "never", run(statement), MODES[mode])
    service.agrees_on()


def test_a_read_only_connection_is_refused_with_both_halves_undone(server_service: Service, mode: Mode) -> None:
    read_only = {
        "postgresql": "set session characteristics as transaction read only",
        "mysql": "set session transaction read only",
    }
    with server_service.bank.connection() as connection:
        run(read_only[server_service.bank.engine])(connection)
        connection.commit()
        with pytest.raises(DatabaseReadOnly, match="not a replica"):
            only_send(server_service, connection, mode)
    server_service.agrees_on()


def only_send(service: Service, connection: Any, mode: Mode) -> None:
    with service.ts.transaction(connection, **mode) as tx:
        tx.send(service.topic, "never")
        if "prepare" in mode:
            tx.prepare()


# Errors that the block's code swallows


def test_a_timeout_that_is_swallowed_has_aborted_postgresqls_transaction(postgres_service: Service, mode: Mode) -> None:
    too_long = run_and_ignore("set local statement_timeout = 50; select pg_sleep(5)", psycopg.errors.QueryCanceled)
    with postgres_service.bank.connection() as connection:
        with pytest.raises(TransactionLost, match="aborted by an earlier error"):
            postgres_service.block(connection, "never", too_long, mode)
        postgres_service.block(connection, "next", mode=mode)
    postgres_service.agrees_on("next")


def test_a_timeout_that_is_swallowed_undoes_only_its_statement_on_mariadb(mariadb_service: Service, mode: Mode) -> None:
    service = mariadb_service
    service.bank.run("create table row_of_another (id int primary key)")
    service.bank.run("insert into row_of_another values (1)")
    with service.bank.connection() as holder, service.bank.connection() as connection:
        run("select * from row_of_another for update")(holder)
        run("set session innodb_lock_wait_timeout = 0")(connection)
        locked = run_and_ignore("select * from row_of_another for update", pymysql.err.OperationalError)
        service.block(connection, "a lock", locked, mode)
        slow = "set statement max_statement_time = 0.05 for select sleep(5)"
        service.block(connection, "a timeout", run_and_ignore(slow, pymysql.err.OperationalError), mode)
        holder.rollback()
    service.agrees_on("a lock", "a timeout")


def test_a_session_that_idled_too_long_is_gone_and_so_is_its_block(postgres_service: Service, mode: Mode) -> None:
    def idle(connection: Any) -> None:
        connection.execute("set local idle_in_transaction_session_timeout = 20")
        mine = connection.info.backend_pid
        still_there = f"select 1 from pg_stat_activity where pid = {mine}"
        while postgres_service.bank.rows(still_there):
            time.sleep(0.02)

    with postgres_service.bank.connection() as connection, pytest.raises(psycopg.Error):
        postgres_service.block(connection, "never", idle, mode)
    postgres_service.agrees_on()


# At the commit itself


def test_a_constraint_that_is_checked_at_the_commit_fails_the_block_for_certain(
    postgres_service: Service, mode: Mode
) -> None:
    service = postgres_service
    raising = "begin raise exception 'not balanced'; end"
    service.bank.run(f"create function check_it() returns trigger language plpgsql as $$ {raising} $$")
    service.bank.run(
        "create constraint trigger balanced after insert on ledger deferrable initially deferred "
        "for each row when (new.note = 'wrong') execute function check_it()"
    )
    with service.bank.connection() as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="not balanced"):
            service.block(connection, "wrong", mode=mode)
        service.block(connection, "right", mode=mode)
    service.agrees_on("right")


# Cursors


def test_a_named_cursor_that_is_open_at_the_commit_is_closed_by_it(postgres_service: Service, mode: Mode) -> None:
    cursors = []

    def open_cursor(connection: Any) -> None:
        cursors.append(connection.cursor("rows"))
        cursors[0].execute("select generate_series(1, 1000)")
        cursors[0].fetchone()

    with postgres_service.bank.connection() as connection:
        postgres_service.block(connection, "there", open_cursor, mode)
        with pytest.raises(psycopg.errors.InvalidCursorName):
            cursors[0].fetchone()
        connection.rollback()
        cursors[0].close()
    postgres_service.agrees_on("there")


@pytest.mark.filterwarnings("ignore:Previous unbuffered result was left incomplete")
def test_an_unbuffered_cursor_of_pymysql_that_was_not_read_is_read_to_its_end(
    mariadb_service: Service, mode: Mode
) -> None:
    def open_cursor(connection: Any) -> None:
        cursor = connection.cursor(pymysql.cursors.SSCursor)
        cursor.execute("select seq from seq_1_to_1000")
        cursor.fetchone()

    with mariadb_service.bank.connection() as connection:
        mariadb_service.block(connection, "there", open_cursor, mode)
    mariadb_service.agrees_on("there")


def test_a_stream_that_was_not_read_is_refused_instead_of_waited_for(postgres_service: Service, mode: Mode) -> None:
    """psycopg would wait for its end on the very thread that has to bring it about."""
    streams = []

    def open_stream(connection: Any) -> None:
        streams.append(connection.cursor().stream("select generate_series(1, 100000)"))
        next(streams[0])

    with postgres_service.bank.connection() as connection:
        with pytest.raises(UnsupportedConnection, match="not read to its end"):
            postgres_service.block(connection, "never", open_stream, mode)
        assert connection.closed  # the only way to undo what is in it
        streams[0].close()
    postgres_service.agrees_on()
