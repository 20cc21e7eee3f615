"""SQLAlchemy: pools that ping and recycle, sessions of all kinds, two phases, and hooks that run at the commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from borders_support import DRIVERS, INSERT, Mode, Service
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from eventually import eventually
from tallystick import errors
from tallystick.barrier.errors import TransactionLost


@contextlib.contextmanager
def engine_of(service: Service, **options: Any) -> Iterator[Engine]:
    engine = create_engine(service.bank.url(DRIVERS[service.bank.engine]), **options)
    try:
        yield engine
    finally:
        engine.dispose()


def block(service: Service, owner: Connection | Session, note: str, mode: Mode | None = None) -> None:
    """One block on a connection or a session of SQLAlchemy."""
    early = bool(mode) and "prepare" in mode
    with service.ts.transaction(owner, **(mode or {})) as tx:
        if early:
            tx.send(service.topic, note)
            tx.prepare()
        owner.execute(text(INSERT), {"note": note})
        if not early:
            tx.send(service.topic, note)


def test_a_pool_that_pings_and_recycles_and_has_one_connection_is_enough(any_service: Service) -> None:
    with engine_of(any_service, pool_pre_ping=True, pool_recycle=0, pool_size=1, max_overflow=0) as engine:
        for number in range(3):
            with engine.connect() as connection:
                block(any_service, connection, f"core {number}")
        with Session(engine) as session:
            block(any_service, session, "session")
    any_service.agrees_on("core 0", "core 1", "core 2", "session")


def in_session_begin(service: Service, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        block(service, session, "there")


def in_sessionmaker_begin(service: Service, engine: Engine) -> None:
    with sessionmaker(engine).begin() as session:
        block(service, session, "there")


def in_engine_begin(service: Service, engine: Engine) -> None:
    with engine.begin() as connection:
        block(service, connection, "there")


def in_a_nested_session(service: Service, engine: Engine) -> None:
    with Session(engine) as session, session.begin_nested():
        block(service, session, "there")


def in_a_nested_connection(service: Service, engine: Engine) -> None:
    with engine.connect() as connection, connection.begin_nested():
        block(service, connection, "there")


def begun_by_hand(service: Service, engine: Engine) -> None:
    with Session(engine, autobegin=False) as session:
        session.begin()
        block(service, session, "there")


def savepoints_inside(service: Service, engine: Engine) -> None:
    with Session(engine) as session, service.ts.transaction(session) as tx:
        with session.begin_nested():
            session.execute(text(INSERT), {"note": "there"})
        with contextlib.suppress(ValueError), session.begin_nested():
            session.execute(text(INSERT), {"note": "undone"})
            raise ValueError
        tx.send(service.topic, "there")


BEGUN = [
    in_session_begin,
    in_sessionmaker_begin,
    in_engine_begin,
    in_a_nested_session,
    in_a_nested_connection,
    begun_by_hand,
    savepoints_inside,
]


@pytest.mark.parametrize("use", BEGUN)
def test_a_block_inside_what_sqlalchemy_has_begun_commits_all_of_it(
    any_service: Service, use: Callable[[Service, Engine], None]
) -> None:
    with engine_of(any_service) as engine:
        use(any_service, engine)
    any_service.agrees_on("there")


def test_a_session_that_may_not_begin_by_itself_is_refused_by_sqlalchemy(sqlite_service: Service) -> None:
    with (
        engine_of(sqlite_service) as engine,
        Session(engine, autobegin=False) as session,
        pytest.raises(InvalidRequestError, match="Autobegin is disabled"),
    ):
        block(sqlite_service, session, "never")
    sqlite_service.agrees_on()


@pytest.mark.parametrize("expire", [True, False])
def test_a_session_goes_on_to_the_next_block_whether_its_objects_expire_or_not(
    any_service: Service, expire: bool
) -> None:
    with engine_of(any_service) as engine, Session(engine, expire_on_commit=expire) as session:
        block(any_service, session, "first")
        block(any_service, session, "second")
    any_service.agrees_on("first", "second")


@pytest.mark.mariadb
def test_two_phases_of_sqlalchemy_are_one_commit(mariadb_service: Service, mode: Mode) -> None:
    with engine_of(mariadb_service) as engine:
        with Session(engine, twophase=True) as session:
            block(mariadb_service, session, "session", mode)
        with engine.connect() as connection:
            connection.begin_twophase()
            block(mariadb_service, connection, "connection", mode)
    mariadb_service.agrees_on("session", "connection")


# Hooks


def fails(*_: Any) -> None:
    raise RuntimeError("the hook failed")


def breaks(target: Connection | Session) -> None:
    """A statement that fails, and nobody is told: PostgreSQL has aborted the transaction."""
    connection = target.connection() if isinstance(target, Session) else target
    with contextlib.suppress(DBAPIError):
        connection.exec_driver_sql("insert into no_such_table values (1)")


def rolls_back(connection: Connection) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.rollback()


def writes(connection: Connection) -> None:
    connection.exec_driver_sql("insert into ledger (note) values ('by the hook')")


@contextlib.contextmanager
def hooked(target: Any, name: str, hook: Callable[..., None]) -> Iterator[None]:
    event.listen(target, name, hook)
    try:
        yield
    finally:
        event.remove(target, name, hook)


@pytest.mark.parametrize("name", ["before_commit", "commit"])
def test_a_hook_that_fails_before_the_commit_fails_the_block_for_certain(any_service: Service, name: str) -> None:
    """Its own error, not `OutcomeUnknown`; and the connection goes back to the pool without the transaction."""
    with engine_of(any_service, pool_size=1, max_overflow=0) as engine:
        with (
            hooked(Session if name == "before_commit" else engine, name, fails),
            Session(engine) as session,
            pytest.raises(RuntimeError, match="the hook failed"),
        ):
            block(any_service, session, "hook")
        with Session(engine) as session:
            block(any_service, session, "next")
    any_service.agrees_on("next")


@pytest.mark.postgresql
@pytest.mark.parametrize("name", ["before_commit", "commit"])
def test_a_hook_that_swallows_an_error_does_not_turn_the_commit_into_a_rollback(
    postgres_service: Service, mode: Mode, name: str
) -> None:
    with engine_of(postgres_service) as engine:
        for late in (False, True):  # the hook is older than the engine's first block, or younger
            with (
                hooked(Session if name == "before_commit" else engine, name, breaks),
                Session(engine) as session,
                pytest.raises(TransactionLost, match="aborted by an earlier error"),
            ):
                block(postgres_service, session, f"hook {late}", mode)
            with engine.connect() as connection:
                block(postgres_service, connection, f"next {late}", mode)
    postgres_service.agrees_on("next False", "next True")


def test_a_hook_that_ends_the_transaction_behind_sqlalchemys_back_is_noticed(any_service: Service) -> None:
    with engine_of(any_service) as engine, hooked(engine, "commit", rolls_back):
        with engine.connect() as connection, pytest.raises(errors.OutcomeUnknown, match="ended before its commit"):
            block(any_service, connection, "core")
        with Session(engine) as session, pytest.raises(errors.OutcomeUnknown, match="ended before its commit"):
            block(any_service, session, "session")
    any_service.agrees_on()


def test_on_sqlite_a_savepoint_may_be_the_transaction_and_a_hook_comes_too_late_to_stop_it(
    sqlite_service: Service, mode: Mode
) -> None:
    """The driver sends no BEGIN before a savepoint, so to release it is to commit, and that comes before the hook."""

    def comes_to_its_commit() -> bool:
        with (
            engine_of(sqlite_service) as engine,
            hooked(engine, "commit", fails),
            Session(engine) as session,
            contextlib.suppress(InvalidRequestError),
            session.begin_nested(),
            pytest.raises((errors.OutcomeUnknown, OperationalError)) as refused,
        ):
            block(sqlite_service, session, "there", mode)
        # A savepoint reads before it writes, and SQLite refuses that to one of two who do so at the same moment.
        return "database is locked" not in str(refused.value) and "the hook failed" in str(refused.value)

    eventually(comes_to_its_commit)
    sqlite_service.agrees_on("there")


def test_what_a_hook_writes_at_the_commit_is_committed(any_service: Service) -> None:
    with engine_of(any_service) as engine, hooked(engine, "commit", writes), engine.connect() as connection:
        block(any_service, connection, "there")
    assert sorted(any_service.bank.notes()) == ["by the hook", "there"]
    assert any_service.messages() == ["there"]


def test_a_hook_that_fails_after_the_commit_leaves_the_truth_to_the_check_back(any_service: Service) -> None:
    with (
        engine_of(any_service) as engine,
        hooked(Session, "after_commit", fails),
        Session(engine) as session,
        pytest.raises(errors.OutcomeUnknown, match="the hook failed"),
    ):
        block(any_service, session, "there")
    any_service.agrees_on("there")
