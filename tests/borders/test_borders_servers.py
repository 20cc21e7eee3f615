"""The database server goes away: killed around the commit of a block, or replaced by its standby."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from borders_support import COMMIT, Mode, Service
from client_support import Bank

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from servers import Server, pgbouncer, postgres_server, postgres_standby
from tallystick import errors
from tallystick.barrier import adapt_sync, decide_many, mark_committed, run_sync
from tallystick.barrier.errors import DatabaseReadOnly

pytestmark = [pytest.mark.postgresql, pytest.mark.fault]


def crash(connection: psycopg.Connection[Any]) -> None:
    """Kill the server's process of this connection: PostgreSQL then ends all of them, and recovers from its log."""
    os.kill(connection.info.backend_pid, signal.SIGKILL)


def crash_at_commit(tx: tallystick.Transaction, connection: Any, *, before: bool) -> None:
    """Have the server crash between what comes before the local commit and what comes after it."""
    adapter: Any = tx._block.adapter
    commit: Callable[[], None] = adapter.commit

    def commit_around_a_crash() -> None:
        if before:
            crash(connection)
        commit()
        if not before:
            crash(connection)

    adapter.commit = commit_around_a_crash


def back_again(bank: Bank) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        return bank.rows("select 1") == [(1,)]
    return False


def test_a_server_that_is_killed_inside_a_block_has_committed_nothing(postgres_service: Service, mode: Mode) -> None:
    with postgres_service.bank.connection() as connection, pytest.raises(psycopg.OperationalError):
        postgres_service.block(connection, "never", crash, mode)
    eventually(lambda: back_again(postgres_service.bank))
    postgres_service.agrees_on()


def test_a_server_that_is_killed_between_the_prepare_and_the_commit_is_asked_when_it_is_back(
    postgres_service: Service, mode: Mode
) -> None:
    with (
        postgres_service.bank.connection() as connection,
        pytest.raises(errors.OutcomeUnknown, match="will find the truth"),
    ):
        block_around_a_crash(postgres_service, connection, mode, before=True)
    eventually(lambda: back_again(postgres_service.bank))
    postgres_service.agrees_on()


def test_a_server_that_is_killed_after_the_commit_has_kept_it(postgres_service: Service, mode: Mode) -> None:
    with postgres_service.bank.connection() as connection:
        block_around_a_crash(postgres_service, connection, mode, before=False)
    eventually(lambda: back_again(postgres_service.bank))
    postgres_service.agrees_on("there")


def block_around_a_crash(service: Service, connection: Any, mode: Mode, *, before: bool) -> None:
    with service.ts.transaction(connection, **mode) as tx:
        tx.send(service.topic, "there")
        if "prepare" in mode:
            tx.prepare()
        service.bank.note(connection, "there")
        crash_at_commit(tx, connection, before=before)


READ_ONLY = {
    "sqlite": "pragma query_only = 1",
    "postgresql": "set session characteristics as transaction read only",
    "mysql": "set session transaction read only",
}


@pytest.mark.mariadb
def test_a_read_only_copy_tells_the_outcomes_that_it_has_and_no_others(any_bank: Bank) -> None:
    """One that it cannot decide does not keep it from telling the others."""
    with any_bank.connection() as connection:
        run_sync(adapt_sync(connection), mark_committed("there"))
        connection.commit()
        connection.cursor().execute(READ_ONLY[any_bank.engine])
        connection.commit()
        answers = run_sync(adapt_sync(connection), decide_many(["not-there", "there"]))
        assert answers == {"there": "committed", "not-there": "running"}
        with pytest.raises(DatabaseReadOnly):
            run_sync(adapt_sync(connection), decide_many(["not-there"]))


class Pair(Bank):
    """A bank on a primary and its standby, behind one address that leads to the one that is in charge."""

    def __init__(self, primary: Server, address: Server) -> None:
        self._address = address
        super().__init__("postgresql", primary)

    def open(self) -> Any:
        return self._address.connect(self._database)


def test_a_standby_answers_what_it_knows_and_decides_nothing_until_it_is_promoted(
    broker: BrokerProcess, topic: str, group: str
) -> None:
    with (
        postgres_server(fsync="off") as primary,
        postgres_standby(primary) as standby,
        pgbouncer(primary, "session") as address,
    ):
        bank = Pair(primary, address)
        with contextlib.closing(Service(broker, bank, topic, group)) as service:
            committed, undecided = leave_two_without_a_word(service, primary, standby)
            lead_to(address, primary, standby)
            eventually(lambda: back_again(bank), "the address leads to the standby")
            eventually(lambda: service.ts.outcome(committed) == "committed", "the standby has the row, and says so")
            view = eventually(lambda: (found := service.ts.transaction_state(undecided)).last_error and found)
            eventually(lambda: "refuses writes" in service.ts.transaction_state(undecided).last_error)
            assert view.state == "prepared"
            with bank.connection() as connection, pytest.raises(DatabaseReadOnly):
                only_send(service, connection)
            standby.execute("select pg_promote()", "postgres")
            eventually(lambda: service.ts.outcome(undecided) == "rolled_back", "the promoted standby decides")
            with bank.connection() as connection:
                service.block(connection, "on the new primary")
            service.agrees_on("committed", "on the new primary")


def lead_to(address: Server, primary: Server, standby: Server) -> None:
    settings = address.directory / "ini"
    settings.write_text(settings.read_text().replace(f"port={primary.port}", f"port={standby.port}"))
    address.process.send_signal(signal.SIGHUP)


def leave_two_without_a_word(service: Service, primary: Server, standby: Server) -> tuple[str, str]:
    """Two transactions whose outcome no broker has heard of, one committed and one open when the primary dies."""
    with lossy_proxy(service.broker.port) as proxy:
        dead = tallystick.Client(
            proxy.url, group=service.group, commit_wait=0.01, timeout=0.5, check_after=0.5, wait=True
        )
        with service.bank.connection() as connection, dead.transaction(connection, prepare="early") as open_tx:
            open_tx.send(service.topic, "open")
            open_tx.prepare()
            service.bank.note(connection, "open")
            proxy.refusing = COMMIT
            with service.bank.connection() as other, dead.transaction(other) as tx:
                service.bank.note(other, "committed")
                tx.send(service.topic, "committed")
            eventually(lambda: has_followed(primary, standby), "the standby has all that the primary has")
            primary.process.kill()
            primary.process.wait()
            dead.close(timeout=0.01)
            with contextlib.suppress(Exception):
                open_tx.commit()
        return tx.gid, open_tx.gid


def has_followed(primary: Server, standby: Server) -> bool:
    ((end,),) = primary.execute("select pg_current_wal_lsn()")
    return standby.execute(f"select pg_last_wal_replay_lsn() >= '{end}'") == [(True,)]


def only_send(service: Service, connection: Any) -> None:
    with service.ts.transaction(connection) as tx:
        tx.send(service.topic, "never")
