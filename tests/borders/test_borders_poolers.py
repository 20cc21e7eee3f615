"""PgBouncer between a service and its database: in each transaction a connection may lead to another session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from borders_support import COMMIT, MODES, Mode, Service
from client_support import Bank
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from servers import Server, pgbouncer
from tallystick import CheckBack
from tallystick.barrier import create_tables

pytestmark = pytest.mark.postgresql

UNPREPARED: dict[str, Any] = {"prepare_threshold": None}
"""What psycopg asks for behind a pooler of transactions."""


class PooledBank(Bank):
    """The bank as it is seen through a pooler; the tests themselves look at it directly."""

    def __init__(self, server: Server, pooler: Server) -> None:
        super().__init__("postgresql", server)
        self.pooler = pooler

    def through(self, **options: Any) -> Any:
        return self.pooler.connect(self._database, **options)

    def pooled_url(self) -> Any:
        return self.pooler.url("postgresql+psycopg", self._database)


@pytest.fixture(scope="module")
def transactions(postgres: Server) -> Iterator[Server]:
    # In turn, and not the last one again: each transaction comes to another session.
    with pgbouncer(postgres, "transaction", default_pool_size="3", server_round_robin="1") as pooler:
        yield pooler


@pytest.fixture(scope="module")
def sessions(postgres: Server) -> Iterator[Server]:
    with pgbouncer(postgres, "session") as pooler:
        yield pooler


@pytest.fixture(params=["transactions", "sessions"])
def bank(request: pytest.FixtureRequest, postgres: Server) -> PooledBank:
    return PooledBank(postgres, request.getfixturevalue(request.param))


@pytest.fixture
def service(broker: BrokerProcess, bank: PooledBank, topic: str, group: str) -> Iterator[Service]:
    with contextlib.closing(Service(broker, bank, topic, group, database=None)) as made:
        yield made


@pytest.mark.parametrize("autocommit", [False, True])
def test_blocks_through_a_pooler(service: Service, bank: PooledBank, mode: Mode, autocommit: bool) -> None:
    notes = [f"{number}" for number in range(8)]
    with contextlib.closing(bank.through(autocommit=autocommit, **UNPREPARED)) as connection:
        for note in notes:
            service.block(connection, note, mode=mode)
        with pytest.raises(ZeroDivisionError):
            service.block(connection, "never", lambda _: 1 // 0, mode)
    service.agrees_on(*notes)


def test_a_session_of_sqlalchemy_through_a_pooler(service: Service, bank: PooledBank) -> None:
    engine = create_engine(bank.pooled_url(), poolclass=NullPool, connect_args=UNPREPARED)
    for number in range(3):
        with Session(engine) as session, service.ts.transaction(session) as tx:
            session.execute(text("insert into ledger (note) values (:note)"), {"note": str(number)})
            tx.send(service.topic, str(number))
    engine.dispose()
    service.agrees_on("0", "1", "2")


def test_check_backs_are_answered_through_the_pooler(service: Service, bank: PooledBank) -> None:
    with lossy_proxy(service.broker.port) as proxy:
        killed = tallystick.Client(proxy.url, group=service.group, commit_wait=0.01, timeout=0.5, wait=True)
        proxy.refusing = COMMIT
        with contextlib.closing(bank.through(**UNPREPARED)) as connection, killed.transaction(connection) as tx:
            bank.note(connection, "committed")
            tx.send(service.topic, "committed")
        service.agrees_on("committed")  # it has no other way in than the one that it has learned
        killed.close(timeout=0.01)


@pytest.mark.parametrize("mode", [MODES["late"], MODES["outbox"]])
def test_a_search_path_is_part_of_the_way_through_a_pooler(service: Service, bank: PooledBank, mode: Mode) -> None:
    """Two tenants in two schemas. Each sets its path in its transaction; a session's would be another one's next."""
    for tenant in ("one", "two"):
        with contextlib.closing(bank.open()) as connection:
            connection.execute(f"create schema {tenant}")
            connection.execute(f"set search_path to {tenant}")
            connection.commit()
            create_tables(connection)
            connection.execute("create table ledger (note varchar(100) not null)")
            connection.commit()
    with (
        lossy_proxy(service.broker.port) as proxy,
        contextlib.closing(bank.through(**UNPREPARED)) as connection,
        contextlib.ExitStack() as clients,
    ):
        proxy.refusing = COMMIT
        for tenant in ("one", "two"):
            killed = tallystick.Client(proxy.url, group=service.group, commit_wait=0.01, timeout=0.5, wait=True)
            clients.callback(killed.close, timeout=0.01)
            connection.execute(f"set local search_path to {tenant}")
            with killed.transaction(connection, **mode) as tx:
                bank.note(connection, tenant)
                tx.send(service.topic, tenant)
        eventually(lambda: service.messages() == ["one", "two"], "both tenants' messages")
        for tenant in ("one", "two"):
            outbox = f"select gid from {tenant}.tallystick_outbox"
            eventually(lambda outbox=outbox: bank.rows(outbox) == [], "an outbox is emptied")


def test_statement_pooling_is_refused_by_the_pooler(
    postgres: Server, broker: BrokerProcess, topic: str, group: str
) -> None:
    with pgbouncer(postgres, "statement") as pooler:
        bank = PooledBank(postgres, pooler)
        with (
            contextlib.closing(Service(broker, bank, topic, group, check=CheckBack(after=1))) as service,
            contextlib.closing(bank.through()) as connection,
        ):
            with pytest.raises(psycopg.errors.ProtocolViolation, match="transaction blocks not allowed"):
                service.block(connection, "never")
            service.agrees_on()
