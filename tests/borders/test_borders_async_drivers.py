"""Asynchronous blocks over aiosqlite, aiomysql and asyncmy that are cancelled, at each of their awaits in turn."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any

import aiomysql
import aiosqlite
import asyncmy
import pytest
from borders_support import MODES, Mode, Service
from client_support import Bank
from test_borders_async import LIMIT, CancelledAt, _ends, block

from tallystick import AsyncClient, errors

pytestmark = pytest.mark.full

UNUSABLE = (aiomysql.Error, asyncmy.errors.Error, sqlite3.Error, RuntimeError, errors.TallystickError)
"""What a connection raises that a cancelled block has left."""

CASES = [
    ("aiosqlite", "sqlite_service", "late"),
    pytest.param("aiomysql", "mariadb_service", "late", marks=pytest.mark.mariadb),
    pytest.param("asyncmy", "mariadb_service", "late", marks=pytest.mark.mariadb),
    pytest.param("aiomysql", "mariadb_service", "outbox", marks=pytest.mark.mariadb),
]


async def connect(bank: Bank, driver: str) -> Any:
    if driver == "aiosqlite":
        return await aiosqlite.connect(bank.path, timeout=10)
    given = bank.parameters()
    if driver == "aiomysql":
        return await aiomysql.connect(db=given.pop("database"), **given)
    return await asyncmy.connect(**given)


async def cancel_everywhere(ts: AsyncClient, service: Service, driver: str, mode: Mode) -> list[str]:
    """A block for each await that it has, cancelled there; the notes of those that came to their end all the same."""
    done: list[str] = []
    for number in range(LIMIT):
        note = f"{number:03}"
        connection = await connect(service.bank, driver)

        async def execute(sql: str, connection: Any = connection) -> None:
            async with connection.cursor() as cursor:
                await cursor.execute(sql)

        # The first is not cancelled: what is learned only once would make of each block another one.
        played = CancelledAt(block(ts, connection, execute, service.topic, note, mode), number, 1)
        if await _ends(played):
            done.append(note)
        with suppress(*UNUSABLE):
            await block(ts, connection, execute, service.topic, f"{note} next", mode)
            done.append(f"{note} next")
        await (connection.close() if driver == "aiosqlite" else connection.ensure_closed())
        if played.waits < number:
            return done
    raise AssertionError(f"a block with more than {LIMIT} awaits")


@pytest.mark.parametrize(("driver", "fixture", "mode"), CASES)
async def test_a_block_that_is_cancelled_at_any_await_has_its_row_and_its_message_or_neither(
    request: pytest.FixtureRequest, driver: str, fixture: str, mode: str
) -> None:
    service: Service = request.getfixturevalue(fixture)
    async with AsyncClient(service.broker.url, group=service.group, wait=True) as ts:
        done = await cancel_everywhere(ts, service, driver, MODES[mode])
        there = service.bank.notes()
        await asyncio.to_thread(service.agrees_on, *there)
    assert len(done) > 2
    assert set(done) <= set(there)
