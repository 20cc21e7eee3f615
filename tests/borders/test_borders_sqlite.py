"""SQLite: attached databases, journal modes and pragmas, and a snapshot that is too old to write."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from borders_support import COMMIT, Mode, Service, run

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually

PRAGMAS = [
    "journal_mode = wal",
    "journal_mode = memory",
    "locking_mode = normal",
    "foreign_keys = on",
    "defer_foreign_keys = on",
    "read_uncommitted = 1",
]


def test_pragmas_before_and_inside_a_block_do_not_matter_to_its_end(sqlite_service: Service, mode: Mode) -> None:
    notes = []
    for pragma in PRAGMAS:
        with sqlite_service.bank.connection() as connection:
            sqlite_service.block(connection, f"{pragma} inside", run(f"pragma {pragma}"), mode)
            # Some of them wait for nobody, and an outbox is emptied in the background.
            set_pragma = partial(run(f"pragma {pragma}"), connection)
            eventually(set_pragma, pragma, ignoring=(sqlite3.OperationalError,))
            sqlite_service.block(connection, f"{pragma} before", mode=mode)
            notes += [f"{pragma} inside", f"{pragma} before"]
            with pytest.raises(ZeroDivisionError):
                sqlite_service.block(connection, "never", lambda _: 1 // 0, mode)
    sqlite_service.agrees_on(*notes)


def test_query_only_inside_a_block_is_refused_as_read_only(sqlite_service: Service) -> None:
    with (
        sqlite_service.bank.connection() as connection,
        pytest.raises(tallystick.errors.TallystickError, match="write"),
    ):
        sqlite_service.block(connection, "never", run("pragma query_only = 1"))
    sqlite_service.agrees_on()


def test_a_snapshot_that_is_too_old_to_write_fails_the_block(sqlite_service: Service, mode: Mode) -> None:
    service = sqlite_service
    eventually(lambda: _set_wal(service.bank.path))
    with service.bank.connection() as connection, service.bank.connection() as other:
        connection.execute("begin deferred")
        connection.execute("select * from ledger").fetchall()
        other.execute("create table something (else_ int)")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            service.block(connection, "never", mode=mode)
        service.block(connection, "next", mode=mode)
    service.agrees_on("next")


def _set_wal(path: Path) -> bool:
    """The library has connections of its own, which may be at work for a moment."""
    with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.OperationalError):
        return bool(connection.execute("pragma journal_mode = wal").fetchone() == ("wal",))
    return False


def test_a_database_cannot_be_attached_away_from_under_a_block(sqlite_service: Service, tmp_path: Path) -> None:
    with sqlite_service.bank.connection() as connection:
        run(f"attach '{tmp_path / 'other.db'}' as other")(connection)
        run("create table other.things (name text)")(connection)
        connection.commit()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sqlite_service.block(connection, "never", _write_and_detach)
        sqlite_service.block(connection, "there", run("insert into other.things values ('there')"))
        assert connection.execute("select * from other.things").fetchall() == [("there",)]
    sqlite_service.agrees_on("there")


def _write_and_detach(connection: sqlite3.Connection) -> None:
    connection.execute("insert into other.things values ('never')")
    connection.execute("detach other")


def test_a_barrier_in_an_attached_database_is_asked_where_it_is(
    broker: BrokerProcess, sqlite_service: Service, tmp_path: Path
) -> None:
    """The connection's main database, where a second one would look by itself, has no barrier."""
    service = sqlite_service
    with lossy_proxy(broker.port) as proxy, contextlib.closing(sqlite3.connect(tmp_path / "main.db")) as connection:
        connection.execute("attach ? as bank", (str(service.bank.path),))
        proxy.refusing = COMMIT
        killed = tallystick.Client(
            proxy.url, group=service.group, database=service.bank.open, commit_wait=0.01, timeout=0.5, wait=True
        )
        with killed.transaction(connection) as tx:
            connection.execute("insert into bank.ledger (note) values ('attached')")
            tx.send(service.topic, "attached")
        # It answers for its own transactions, over the way that it was given.
        service.agrees_on("attached")
        killed.close(timeout=0.01)


def test_a_barrier_that_only_this_connection_has_attached_is_refused(sqlite_service: Service, tmp_path: Path) -> None:
    service = sqlite_service
    with (
        tallystick.Client(service.broker.url, group=service.group, wait=True) as ts,
        contextlib.closing(sqlite3.connect(tmp_path / "main.db")) as connection,
    ):
        connection.execute("attach ? as bank", (str(service.bank.path),))
        with pytest.raises(tallystick.errors.InvalidRequest, match="database=open_connection"):
            _block(ts, connection, service.topic)
    service.agrees_on()


def _block(ts: tallystick.Client, connection: sqlite3.Connection, topic: str) -> None:
    with ts.transaction(connection) as tx:
        connection.execute("insert into bank.ledger (note) values ('never')")
        tx.send(topic, "never")
