"""Two barriers behind one address are two: schemas of one database, and databases that took another one's place."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from client_support import Bank, values_in
from sqlalchemy import create_engine, text

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually
from servers import Server
from tallystick import CheckBack
from tallystick.barrier import WrongDatabase, adapt_sync, create_tables, decide, run_sync
from tallystick.client import handlers
from tallystick.client.transactions.modes import CheckBackBlock
from tallystick.client.transactions.script import nothing
from tallystick.link import Link

QUICK = {"check_after": "200ms", "check_interval": "200ms"}


class Tenants:
    """One database (PostgreSQL) or server (MariaDB) with a schema for each of two tenants."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.postgres = server.engine == "postgresql"
        number = server.new_database().rpartition("_")[2]
        self.database = f"service_{number}"
        self.names = [f"tenant_a{number}", f"tenant_b{number}"]
        for name in self.names:
            server.execute(f"create schema {name}", self.database)
            with contextlib.closing(self.open(name)) as connection:
                create_tables(connection)
                connection.cursor().execute("create table ledger (note varchar(100))")
                connection.commit()

    def open(self, tenant: str, how: str = "set", **options: Any) -> Any:
        """A connection that leads to a tenant's tables: by a statement, or from its beginning."""
        if self.postgres and how == "option":
            return self.server.connect(self.database, options=f"-c search_path={tenant}", **options)
        if how == "option":
            return self.server.connect(tenant, **options)
        connection = self.server.connect(self.database, **options)
        self.lead(connection.cursor().execute, tenant)
        connection.commit()
        return connection

    def lead(self, execute: Any, tenant: str) -> None:
        execute(f"set search_path to {tenant}" if self.postgres else f"use {tenant}")

    def rows(self, tenant: str, table: str) -> list[Any]:
        return self.server.execute(f"select * from {tenant}.{table}", self.database)


@pytest.fixture(
    params=[pytest.param("postgres", marks=pytest.mark.postgresql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def tenants(request: pytest.FixtureRequest) -> Tenants:
    return Tenants(request.getfixturevalue(request.param))


@pytest.fixture
def commits_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker never hears of a commit, so it is the check-back that speaks."""
    monkeypatch.setattr(CheckBackBlock, "after_commit", lambda *_: nothing())


needs_check_back = pytest.mark.usefixtures("commits_are_lost")


def pay_in(ts: tallystick.Client, connection: Any, topic: str, value: int, **options: Any) -> str:
    with ts.transaction(connection, **options) as tx:
        connection.cursor().execute("insert into ledger (note) values ('paid')")
        tx.send(topic, value)
    return tx.gid


@needs_check_back
@pytest.mark.parametrize("how", ["option", "set"])
def test_each_tenant_is_answered_from_its_own_barrier(tenants: Tenants, topic: str, group: str, how: str) -> None:
    """Over connections that the client opens itself."""
    with running_broker(**QUICK) as broker, tallystick.Client(broker.url, group=group, wait=True) as ts:
        gids = []
        for number, tenant in enumerate(tenants.names):
            with contextlib.closing(tenants.open(tenant, how)) as connection:
                gids.append(pay_in(ts, connection, topic, number))
        eventually(lambda: values_in(broker.url, topic) == [0, 1], "both are found committed")
        assert [ts.outcome(gid) for gid in gids] == ["committed", "committed"]


@needs_check_back
def test_one_connection_that_goes_from_tenant_to_tenant(tenants: Tenants, topic: str, group: str) -> None:
    with (
        running_broker(**QUICK) as broker,
        tallystick.Client(broker.url, group=group, wait=True) as ts,
        contextlib.closing(tenants.open(tenants.names[0])) as connection,
    ):
        for number in range(6):
            tenants.lead(connection.cursor().execute, tenants.names[number % 2])
            pay_in(ts, connection, topic, number)
        eventually(lambda: values_in(broker.url, topic) == list(range(6)), "all are found committed")
    assert [len(tenants.rows(name, "ledger")) for name in tenants.names] == [3, 3]


def in_state(link: Link, state: str, group: str) -> list[Any]:
    found: list[Any] = link.get("transactions", state=state, group=group)["transactions"]
    return found


def test_a_connection_that_leaves_the_tenant_where_it_was_expected(tenants: Tenants, topic: str, group: str) -> None:
    """Its half messages are under way before it is found elsewhere: they are taken back, and go out under its name."""
    with (
        running_broker() as broker,
        tallystick.Client(broker.url, group=group, wait=True) as ts,
        contextlib.closing(tenants.open(tenants.names[0])) as connection,
    ):
        for number in range(8):
            tenants.lead(connection.cursor().execute, tenants.names[number // 5])
            pay_in(ts, connection, topic, number)
        with Link(broker.url) as link:
            eventually(lambda: not in_state(link, "prepared", group), "nothing is left to a check-back")
            assert len(in_state(link, "rolled_back", group)) == 1
        assert values_in(broker.url, topic) == list(range(8))
        marked = [row for name in tenants.names for row in tenants.rows(name, "tallystick_barrier") if "msg" in row]
        assert len(marked) == 8
    assert [len(tenants.rows(name, "ledger")) for name in tenants.names] == [5, 3]


def test_each_tenants_outbox_is_sent_and_emptied(
    broker: BrokerProcess, tenants: Tenants, topic: str, group: str
) -> None:
    with tallystick.Client(broker.url, group=group, wait=True) as ts:
        for number, tenant in enumerate(tenants.names):
            with contextlib.closing(tenants.open(tenant)) as connection:
                pay_in(ts, connection, topic, number, mode="outbox")
        eventually(lambda: not any(tenants.rows(name, "tallystick_outbox") for name in tenants.names), "both are empty")
    assert values_in(broker.url, topic) == [0, 1]


@needs_check_back
@pytest.mark.parametrize("driver", ["core", "orm"])
def test_sqlalchemy_sessions_that_go_from_tenant_to_tenant(
    tenants: Tenants, topic: str, group: str, driver: str
) -> None:
    """The client's own connections come from the same engine, and begin elsewhere."""
    from sqlalchemy.orm import Session

    name = "postgresql+psycopg" if tenants.postgres else "mysql+pymysql"
    engine = create_engine(tenants.server.url(name, tenants.database))
    with running_broker(**QUICK) as broker, tallystick.Client(broker.url, group=group, wait=True) as ts:
        for number, tenant in enumerate(tenants.names):
            with Session(engine) if driver == "orm" else engine.connect() as used:
                tenants.lead(lambda sql, used=used: used.execute(text(sql)), tenant)
                with ts.transaction(used) as tx:
                    used.execute(text("insert into ledger (note) values ('paid')"))
                    tx.send(topic, number)
        eventually(lambda: values_in(broker.url, topic) == [0, 1], "both are found committed")
    engine.dispose()


@contextlib.contextmanager
def mounted(open_connection: Any) -> Iterator[str]:
    """A service with the check-back handler, and nothing else."""

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with make_server("127.0.0.1", 0, handlers.wsgi(open_connection), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@needs_check_back
@pytest.mark.parametrize("way", ["group", "url", "database"])
def test_nobody_answers_from_another_barrier(tenants: Tenants, topic: str, group: str, way: str) -> None:
    """A's barrier knows nothing of B's transaction, which is no reason to call it rolled back. Those who know only the
    way to A's schema say nothing, or find B's."""
    a, b = tenants.names
    name = "postgresql" if tenants.postgres else "mysql"
    url = tenants.server.url(name, tenants.database).render_as_string(hide_password=False)
    url = f"{url}?options=-csearch_path%3D{a}" if tenants.postgres else url.rpartition("/")[0] + f"/{a}"
    with (
        mounted(lambda: tenants.open(a)) as handler,
        running_broker(**QUICK, databases={"a": url}, allowed_urls=["http://127.0.0.1:*"]) as broker,
    ):
        checks = {"group": None, "url": CheckBack(url=handler), "database": CheckBack(database="a")}
        writer = tallystick.Client(broker.url, group=group, wait=True)
        with contextlib.closing(tenants.open(b)) as connection:
            gid = pay_in(writer, connection, topic, 1, check=checks[way])
        writer.close(timeout=0.01)
        with tallystick.Client(broker.url, group=group, database=lambda: tenants.open(a), wait=True) as ts:
            if way == "group":
                # A member that knows another schema of the database looks into the right one, and answers from there.
                eventually(lambda: ts.outcome(gid) == "committed", "the member answers from B's barrier")
            else:
                view = eventually(lambda: asked(ts, gid), "it was asked for")
                assert view.state == "prepared"
    assert tenants.rows(a, "tallystick_barrier")[1:] == []


def asked(ts: tallystick.Client, gid: str) -> Any:
    view = ts.transaction_state(gid)
    return view if view.checks else None


@needs_check_back
@pytest.mark.parametrize("mark", [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.postgresql)])
def test_another_database_at_the_same_address_gives_no_answer(
    request: pytest.FixtureRequest, tmp_path: Any, topic: str, group: str, mark: str
) -> None:
    """As 127.0.0.1 is on another host: the same address, the same names, and another barrier."""
    bank = (
        Bank("sqlite", tmp_path / "bank.db") if mark == "sqlite" else Bank("postgresql", request.getfixturevalue(mark))
    )
    with running_broker(**QUICK) as broker:
        writer = tallystick.Client(broker.url, group=group, check_after=600, wait=True)
        with bank.connection() as connection:
            gid = pay_in(writer, connection, topic, 1)
            (source,) = writer._core.databases._by_source
            writer.close(timeout=0.01)
        bank.run("drop table tallystick_barrier")
        with bank.connection() as connection:
            create_tables(connection)
            with pytest.raises(WrongDatabase):
                run_sync(adapt_sync(connection), decide(gid, source=source))
    assert bank.rows("select * from tallystick_barrier where op = 'msg'") == []


@pytest.mark.postgresql
def test_a_barrier_that_was_made_without_an_identity_gets_one(
    broker: BrokerProcess, postgres: Server, topic: str, group: str
) -> None:
    bank = Bank("postgresql", postgres)
    bank.run("delete from tallystick_barrier")
    with tallystick.Client(broker.url, group=group, wait=True) as ts, bank.connection() as connection:
        pay_in(ts, connection, topic, 1)
        query = "select reason from tallystick_barrier where op = 'identity'"
        ((identity,),) = eventually(lambda: bank.rows(query), "it gets one, beside the block")
        pay_in(ts, connection, topic, 2)
        assert [source.rpartition("/")[2] for source in ts._core.databases._by_source][1:] == [identity]


def test_a_way_in_that_leads_elsewhere_is_found_out_beside_the_first_block_and_refused_from_then_on(
    tenants: Tenants,
    broker: BrokerProcess,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A seeded bug: the client's own connections stay where they begin. Blocks raise what to do about it."""
    from tallystick.barrier.dialects.base import Dialect

    monkeypatch.setattr(Dialect, "leading_to", lambda self, path: self)
    with (
        tallystick.Client(broker.url, group=group, wait=True) as ts,
        contextlib.closing(tenants.open(tenants.names[1])) as connection,
    ):
        pay_in(ts, connection, topic, 1)
        eventually(lambda: ts._core.databases._nowhere, "it is found out")
        for _ in range(3):
            with pytest.raises(tallystick.TallystickError, match="database=open_connection"):
                pay_in(ts, connection, topic, 2)
    assert values_in(broker.url, topic) == [1]
    assert len([record for record in caplog.records if "no second connection finds" in record.message]) == 1
