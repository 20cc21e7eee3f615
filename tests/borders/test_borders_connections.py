"""What the code of a block does to its connection: savepoints, modes, closing it, and tables in front of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from borders_support import MARIADB, MODES, POSTGRES, Mode, Service, run

from tallystick import errors
from tallystick.barrier.errors import TransactionLost, TransactionOpen

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]


def test_savepoints_of_the_blocks_own_are_its_own(any_service: Service, mode: Mode) -> None:
    service = any_service

    def undo_some(connection: Any) -> None:
        run("savepoint mine")(connection)
        service.bank.note(connection, "undone")
        run("rollback to savepoint mine")(connection)
        run("release savepoint mine")(connection)

    with service.bank.connection() as connection:
        service.block(connection, "there", undo_some, mode)
    service.agrees_on("there")


def test_a_connection_that_the_block_closes_has_committed_nothing(any_service: Service, mode: Mode) -> None:
    with contextlib.closing(any_service.bank.open()) as connection:
        with pytest.raises(Exception, match=r"closed|\(0, ''\)"):
            any_service.block(connection, "never", lambda used: used.close(), mode)
        if any_service.bank.engine == "mysql":
            connection.connect()  # PyMySQL closes only once
    any_service.agrees_on()


@pytest.mark.parametrize(
    ("kind", "toggle", "error"),
    [
        (POSTGRES, lambda used: setattr(used, "autocommit", True), psycopg.ProgrammingError),
        (POSTGRES, lambda used: used.tpc_begin(used.xid(1, "a", "b")), psycopg.ProgrammingError),
        (MARIADB, lambda used: (used.close(), used.connect()), TransactionLost),
    ],
)
def test_a_connection_cannot_change_its_way_in_the_middle(
    request: pytest.FixtureRequest, kind: str, toggle: Callable[[Any], object], error: type[Exception]
) -> None:
    service: Service = request.getfixturevalue(kind)
    with service.bank.connection() as connection, pytest.raises(error):
        service.block(connection, "never", toggle)
    service.agrees_on()


def test_a_two_phase_transaction_of_the_driver_is_refused(postgres_service: Service) -> None:
    with postgres_service.bank.connection() as connection:
        connection.tpc_begin(connection.xid(1, "a", "b"))
        with pytest.raises(TransactionOpen, match="two-phase"):
            postgres_service.block(connection, "never")
        connection.tpc_rollback()
    postgres_service.agrees_on()


def test_an_xa_transaction_is_unknown_until_it_is_ended_by_whoever_began_it(mariadb_service: Service) -> None:
    service = mariadb_service
    for outcome in ("commit", "rollback"):
        with service.bank.connection() as connection:
            run(f"xa start '{service.group}'")(connection)
            with pytest.raises(errors.OutcomeUnknown, match="XAER_RMFAIL"):
                service.block(connection, outcome)
            for step in ("end", "prepare", outcome):
                run(f"xa {step} '{service.group}'")(connection)
    service.agrees_on("commit")


# Tables in the way


def temporary_tables(service: Service) -> Callable[[Any], None]:
    """Empty copies of the tables in front of the true ones, for this connection alone."""

    def create(connection: Any) -> None:
        cursor = connection.cursor()
        for table in ("tallystick_barrier", "tallystick_outbox"):
            if service.bank.engine == "postgresql":
                cursor.execute(f"create temp table {table} (like public.{table} including all)")
                continue
            look = {
                "mysql": f"show create table {table}",
                "sqlite": f"select 0, sql from main.sqlite_master where name = '{table}'",
            }[service.bank.engine]
            cursor.execute(look)
            (_, definition) = cursor.fetchone()
            cursor.execute(definition.lower().replace("create table", "create temporary table", 1))

    return create


@pytest.mark.parametrize("mode", [MODES["late"], MODES["outbox"]])
@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_temporary_table_in_front_of_the_barrier_is_refused(any_service: Service, mode: Mode, when: str) -> None:
    """No other connection has it: a check-back would look into the true table, and call it rolled back."""
    create = temporary_tables(any_service)
    with any_service.bank.connection() as connection:
        if when == "before":
            create(connection)
            connection.commit()
        with pytest.raises(errors.InvalidRequest, match="no second connection finds"):
            any_service.block(connection, "never", create if when == "inside" else lambda _: None, mode)
    any_service.agrees_on()
