"""Crashes on databases that are servers: the connection stays usable, and the books agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest

import tallystick
from servers import Server
from tallystick.barrier import create_tables
from tallystick.testing import STEPS, MemoryBroker, Step, crash_at

DURABLE = ("after commit", "answer lost")

ENGINES = [
    pytest.param("postgres", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=ENGINES, scope="module")
def address(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    server: Server = request.getfixturevalue(request.param)
    where = {"host": server.host, "port": int(server.port), "user": server.user, "password": server.password}
    return request.param, where | {"database" if request.param == "mariadb" else "dbname": server.new_database()}


@pytest.fixture
def conn(address: tuple[str, dict[str, Any]]) -> Iterator[Any]:
    kind, where = address
    made: Any = psycopg.connect(**where) if kind == "postgres" else pymysql.connect(**where)
    create_tables(made)
    with made.cursor() as cursor:
        cursor.execute("drop table if exists orders")
        cursor.execute("create table orders (item varchar(20))")
    made.commit()
    yield made
    made.close()


def items(conn: Any) -> list[str]:
    with conn.cursor() as cursor:
        cursor.execute("select item from orders")
        found = [item for (item,) in cursor.fetchall()]
    conn.rollback()
    return found


@pytest.mark.full
@pytest.mark.parametrize("mode", ["check-back", "outbox", "consumer-dedup"])
@pytest.mark.parametrize("step", STEPS)
def test_the_books_agree_after_a_crash(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, conn: Any, step: Step, mode: Any
) -> None:
    with crash_at(step), tallystick_client.transaction(conn, mode=mode) as tx, conn.cursor() as cursor:
        cursor.execute("insert into orders values ('hat')")
        tx.send("orders", "hat")
    tallystick_broker.check_back()
    assert items(conn) == [message.text for message in tallystick_broker.messages("orders")]
    assert items(conn) == (["hat"] if step in DURABLE else [])


@pytest.mark.full
@pytest.mark.postgresql
@pytest.mark.parametrize("step", STEPS)
async def test_the_books_agree_after_a_crash_on_an_async_driver(
    tallystick_broker: MemoryBroker,
    tallystick_async_client: tallystick.AsyncClient,
    postgres: Server,
    step: Step,
) -> None:
    where: dict[str, Any] = {"host": postgres.host, "port": postgres.port, "user": postgres.user}
    where |= {"password": postgres.password, "dbname": postgres.new_database()}
    with psycopg.connect(**where) as made:
        create_tables(made)
        made.execute("create table orders (item text)")
    conn = await psycopg.AsyncConnection.connect(**where)
    async with tallystick_async_client as ts, conn:
        with crash_at(step):
            async with ts.transaction(conn) as tx:
                await conn.execute("insert into orders values ('hat')")
                tx.send("orders", "hat")
        await tallystick_broker.acheck_back()
        found = await (await conn.execute("select item from orders")).fetchall()
        assert [item for (item,) in found] == [message.text for message in tallystick_broker.messages("orders")]
        assert bool(found) == (step in DURABLE)
